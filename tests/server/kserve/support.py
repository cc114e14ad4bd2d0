"""Tensors and clients as users of Triton's library write them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


@contextmanager
def connected(client: httpx.Client) -> Iterator[triton.InferenceServerClient]:
    """Triton's own client of the server that an httpx client talks to."""
    with triton.InferenceServerClient(address(client)) as connection:
        yield connection


def address(client: httpx.Client) -> str:
    return client.base_url.netloc.decode()


def texts(*values: str, name: str = "text", batch: bool = True, binary: bool = True) -> Any:
    """Texts as a tensor, with a batch dimension or without."""
    array = np.array([value.encode() for value in values], object)
    return tensor(name, array.reshape(-1, 1) if batch else array, "BYTES", binary)


def tensor(name: str, values: Any, datatype: str = "FP32", binary: bool = True) -> Any:
    array = np.asarray(
        values, None if datatype == "BYTES" else {"FP32": "f4", "INT64": "i8"}[datatype]
    )
    infer_input = triton.InferInput(name, list(array.shape), datatype)
    infer_input.set_data_from_numpy(array, binary_data=binary)
    return infer_input


def refused(error: InferenceServerException, status: int) -> str:
    """The text of an error."""
    assert error.status() == str(status), error
    return str(error.message())


def v1(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """Results of the same server under `/v1`."""
    reply = client.post(f"/v1/{path}", json=body)
    assert reply.status_code == 200, reply.text
    results: list[dict[str, Any]] = reply.json().get("results") or reply.json()["choices"]
    return results


def values_of(result: Any, name: str) -> list[Any]:
    """An output's elements, texts decoded."""
    values: Sequence[Any] = result.as_numpy(name).reshape(-1).tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]
