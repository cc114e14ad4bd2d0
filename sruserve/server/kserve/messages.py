"""What an inference is asked with and answers, whatever carries it: tensors and parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Parameters = Mapping[str, Any]  # of bool, int, float and str
# those that are read when a response is written
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
    """An output that the reply shall have.

    parameters: `classification`: give so many of the highest values as `value:index:label` instead.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

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
    inputs: list[Tensor]
    outputs: Sequence[RequestedOutput] = ()
    parameters: dict[str, Any] = field(default_factory=dict)

    def let_go(self) -> None:
        """Forget the inputs and the parameters, which have been read, but for those of the reply.

        A flag that is none stays there as None: it is neither true nor left out.
        """
        self.inputs.clear()
        for parameters in (self.parameters, *(each.parameters for each in self.outputs)):
            told = {name: parameters[name] for name in _OF_REPLY if name in parameters}
            parameters.clear()
            for name, value in told.items():
                parameters[name] = value if isinstance(value, int) else None


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
