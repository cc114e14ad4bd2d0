"""What an inference is asked with and answers, whatever carries it: tensors and parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Parameters = Mapping[str, Any]  # of bool, int, float and str


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array.

    datatype: one of KServe's: BYTES, FP32, INT64 and so on.
    values: all elements in row-major order, (elements); bytes for BYTES.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: NDArray[Any] | Sequence[bytes]


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the reply shall have.

    parameters: `classification`: give so many of the highest values as `value:index:label` instead.
    """

    name: str
    parameters: Parameters = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """How many of the highest values; 0 is the output as it is."""
        return self.parameters.get("classification") or 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference.

    version: "" is the default one.
    outputs: none: all that the model has.
    parameters: of the request: `sequence_id`, `priority`, `sru_state` and so on.
    """

    model: str
    version: str
    id: str
    inputs: Sequence[Tensor]
    outputs: Sequence[RequestedOutput] = ()
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferResponse:
    """Its outcome.

    parameters: `sru_state`, if it was asked for.
    """

    model: str
    version: str
    id: str
    outputs: Sequence[Tensor]
    parameters: Parameters = field(default_factory=dict)
