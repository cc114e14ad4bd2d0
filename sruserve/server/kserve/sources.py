"""The input tensors of models, and their conversion to fields of a request under `/v1`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sruserve.model.folder import Model
from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.datatypes import BYTES
from sruserve.server.kserve.messages import Tensor
from sruserve.server.kserve.signature import Spec


def source(model: Model, text: str, ids: str) -> Spec:
    """The input tensor of a model: texts, or one sequence of ids or features.

    text, ids: the tensor's name if it contains texts or ids.
    """
    if model.codec is not None:
        return Spec(text, BYTES, (1,))
    if model.config.vocab_size is not None:
        return Spec(ids, "INT64", (-1,))
    return Spec("features", "FP32", (-1, model.config.width))


def read_fields(names: Mapping[str, str], inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of a request. Numbers stay in arrays, because long lists block all threads.

    names: the field of each tensor; features always become `features`.
    """
    fields: dict[str, Any] = {}
    for name, tensor in inputs.items():
        if not isinstance(tensor.values, np.ndarray):
            fields[names[name]] = _texts(name, tensor.values)
        elif tensor.datatype == "INT64":
            fields[names[name]] = [tensor.values]
        else:
            if not np.isfinite(tensor.values).all():
                raise InvalidRequest(
                    f"inference input '{name}' has numbers that are not finite: send finite numbers"
                )
            fields["features"] = tensor.values.reshape(tensor.shape)
    return fields


def _texts(name: str, values: Sequence[bytes]) -> list[str]:
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"inference input '{name}' has an element that is not UTF-8: {error.reason} at byte "
            f"{error.start}",
            param="inputs",
        ) from None
