"""Requests and responses of inferences for all transports: tensors and parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Parameters = Mapping[str, Any]  # of bool, int, float and str
# parameters that are read when a response is written
_OF_REPLY = ("binary_data_output", "binary_data", "classification")


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
    """A requested output.

    parameters: `classification`: return this number of highest values as `value:index:label`.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """The number of highest values; 0: return the output itself."""
        return self.parameters.get("classification") or 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference.

    version: "" is the default one.
    outputs: empty: all outputs of the model.
    parameters: of the request: `sequence_id`, `priority`, `sru_state` and so on.
    """

    model: str
    version: str
    id: str
    inputs: list[Tensor]
    outputs: Sequence[RequestedOutput] = ()
    parameters: dict[str, Any] = field(default_factory=dict)

    def drop_read_fields(self) -> None:
        """Drop the inputs and parameters, which have been read, except those of the reply.

        A flag that is not a flag stays as None, so that it is neither true nor absent.
        """
        self.inputs.clear()
        for parameters in (self.parameters, *(output.parameters for output in self.outputs)):
            reply_parameters = {name: parameters[name] for name in _OF_REPLY if name in parameters}
            parameters.clear()
            for name, value in reply_parameters.items():
                parameters[name] = value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The response to an inference.

    parameters: `sru_state`, if it was requested.
    """

    model: str
    version: str
    id: str
    outputs: Sequence[Tensor]
    parameters: Parameters = field(default_factory=dict)
