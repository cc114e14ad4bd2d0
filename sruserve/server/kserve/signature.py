"""A model's input and output tensors, and its metadata and configuration."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.datatypes import BYTES, shape_text
from sruserve.server.kserve.messages import RequestedOutput, Tensor
from sruserve.server.kserve.parameters import DEFAULT_PRIORITY, PRIORITIES
from sruserve.server.repository.served import Served

PLATFORM = "sruserve"
_NO_NUMBERS = (BYTES, "BOOL")


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's name, datatype and shape without the batch dimension; -1: any length.

    replaced_by: a field of the request under `/v1` that stands for this input; "": none does.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    replaced_by: str = ""

    def metadata(self, batch: tuple[int, ...]) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": [*batch, *self.shape]}

    def config(self) -> dict[str, Any]:
        kind = "STRING" if self.datatype == BYTES else self.datatype
        return {"name": self.name, "data_type": f"TYPE_{kind}", "dims": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model.

    max_batch_size: 0: the tensors have no batch dimension.
    """

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    max_batch_size: int

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch dimension of every shape, if there is one."""
        return (-1,) if self.max_batch_size else ()

    def check(
        self, model: str, inputs: Sequence[Tensor], fields: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """The inputs by name; raises Triton's errors if they are not those of the model.

        fields: of the request under `/v1` that parameters have set.
        """
        by_name = {tensor.name: tensor for tensor in inputs}
        names = {spec.name for spec in self.inputs}
        for name in by_name:
            if name not in names:
                raise _refusal(f"unexpected inference input '{name[:100]}' for model '{model}'")
        required = {spec.name for spec in self.inputs if spec.replaced_by not in fields}
        if len(by_name) != len(inputs) or not required <= set(by_name):
            raise _refusal(
                f"expected {len(names)} inputs but got {len(inputs)} inputs for model '{model}'; "
                f"send each of these once: {', '.join(sorted(names))}"
            )
        for spec in self.inputs:
            if spec.name in by_name:
                self._check_one(model, spec, by_name[spec.name])
        if self.max_batch_size and len({tensor.shape[0] for tensor in inputs}) > 1:
            raise _refusal(f"the inputs for model '{model}' must have the same batch size")
        return by_name

    def check_outputs(self, model: str, outputs: Sequence[RequestedOutput]) -> None:
        """Raise if a requested output is repeated, unknown or in an impossible form."""
        datatypes = {spec.name: spec.datatype for spec in self.outputs}
        if len({output.name for output in outputs}) < len(outputs):
            raise InvalidRequest(
                "an output is requested twice; request each output once", param="outputs"
            )
        for output in outputs:
            if "shared_memory_region" in output.parameters:
                raise InvalidRequest(
                    "outputs in shared memory are not supported; leave out 'shared_memory_region'",
                    param="outputs",
                )
            if output.name not in datatypes:
                raise InvalidRequest(
                    f"unexpected inference output '{output.name[:100]}' for model '{model}': "
                    f"request some of {', '.join(datatypes)}, or leave 'outputs' out",
                    param="outputs",
                )
            count = output.parameters.get("classification") or 0
            if (
                type(count) is not int
                or count < 0
                or (count and datatypes[output.name] in _NO_NUMBERS)
            ):
                raise InvalidRequest(
                    f"'classification' of output '{output.name}' must be a number of classes, "
                    "and the output must contain numbers",
                    param="outputs",
                )

    def _check_one(self, model: str, spec: Spec, tensor: Tensor) -> None:
        if tensor.datatype != spec.datatype:
            raise _refusal(
                f"inference input '{spec.name}' data-type is '{tensor.datatype}', but model "
                f"'{model}' expects '{spec.datatype}'"
            )
        expected = (*self.batch, *spec.shape)
        fits = len(tensor.shape) == len(expected) and all(
            limit in (-1, size) for limit, size in zip(expected, tensor.shape, strict=True)
        )
        if not fits:
            raise _refusal(
                f"unexpected shape for input '{spec.name}' for model '{model}'. Expected "
                f"{shape_text(expected)}, got {shape_text(tensor.shape)}"
            )
        if self.max_batch_size and not 1 <= tensor.shape[0] <= self.max_batch_size:
            raise _refusal(
                f"inference request batch-size must be <= {self.max_batch_size} for '{model}', "
                "and at least 1"
            )


def describe_model(served: Served, signature: Signature, versions: Sequence[str]) -> dict[str, Any]:
    """A model's metadata. versions: all that are served."""
    batch = signature.batch
    return {
        "name": served.name,
        "versions": list(versions),
        "platform": PLATFORM,
        "inputs": [spec.metadata(batch) for spec in signature.inputs],
        "outputs": [spec.metadata(batch) for spec in signature.outputs],
    }


def configure_model(served: Served, signature: Signature, max_versions: int) -> dict[str, Any]:
    """A model's configuration: Triton's `ModelConfig` as JSON.

    `sequence_batching`: the model continues sequences.
    """
    model = served.model
    streams: dict[str, Any] = {"sequence_batching": {"direct": {}}}
    whole = {
        "dynamic_batching": {
            "priority_levels": PRIORITIES,
            "default_priority_level": DEFAULT_PRIORITY,
        }
    }
    about = {
        "task": served.task,
        "digest": model.digest,
        "dtype": model.dtype,
        "state_bytes": str(served.state_bytes),
    }
    return {
        "name": served.name,
        "platform": "",
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": max_versions}},
        "max_batch_size": signature.max_batch_size,
        "input": [spec.config() for spec in signature.inputs],
        "output": [spec.config() for spec in signature.outputs],
        "parameters": {name: {"string_value": value} for name, value in about.items()},
        "model_transaction_policy": {"decoupled": False},
        **(streams if served.not_streamable_because is None else whole),
    }


def _refusal(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="inputs")
