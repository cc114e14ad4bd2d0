"""The convolutions of a state dict, and the columns of the embeddings that they read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.names import listed, short
from sruserve.model.importers.tensors import MISFIT, check_names, need

MODULE = re.compile(r"((?:.+\.)?conv[^.]*(?:\.[0-9]{1,4}){0,2})\.(weight|bias)")


@dataclass(frozen=True)
class Module:
    """A convolution as the checkpoint has it: weight (3 or 4 dimensions), bias or None."""

    name: str
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Convolution:
    """A convolution over the embedding's rows: weight (filters, width, inputs)."""

    weight: Tensor
    bias: Tensor | None

    @property
    def inputs(self) -> int:
        return self.weight.shape[2]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a folder, by the rest of their names."""
        weight = self.weight.transpose(0, 1).reshape(-1, self.inputs).contiguous()
        return {"weight": weight} if self.bias is None else {"weight": weight, "bias": self.bias}


def convolution_modules(tensors: Mapping[str, Tensor]) -> list[Module]:
    """Return the convolutions in the order of their numbers, or raise `CheckpointError`."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := MODULE.fullmatch(name):
            parts.setdefault(match[1], {})[match[2]] = tensor
    if not parts:
        raise CheckpointError(
            f"no convolutions, such as convs.0.weight: the tensors are {listed(tensors)}; "
            "--rename OLD=NEW changes a name or a prefix"
        )
    kinds = {re.sub("[0-9]+", "#", name): name for name in parts}
    if len(kinds) > 1:
        raise CheckpointError(
            f"{', '.join(map(short, list(kinds.values())[:4]))} have no common name, so their "
            "order is not known: give them the names convs.0, convs.1, … with --rename"
        )
    biased = {"bias" in own for own in parts.values()}
    modules = []
    for name in sorted(parts, key=lambda name: [int(n) for n in re.findall("[0-9]+", name)]):
        own = parts[name]
        check_names(own, ["weight", "bias"] if True in biased else ["weight"], f"{name}.")
        weight, bias = own["weight"], own.get("bias")
        if weight.dim() not in (3, 4) or not weight.numel() or not weight.is_floating_point():
            raise CheckpointError(
                f"{name}.weight has shape {list(weight.shape)} of {weight.dtype}; it must be that "
                "of a Conv1d (filters, inputs, width) or a Conv2d (filters, channels, width, "
                "inputs), in floats: rename other modules with --rename OLD=NEW"
            )
        if bias is not None and len(need(own, "bias", 1, f"{name}.")) != len(weight):
            raise CheckpointError(
                f"{name}.bias has {len(bias)} numbers for {len(weight)} filters: {MISFIT}"
            )
        modules.append(Module(name, weight, bias))
    return modules


def arranged(module: Module, tables: Sequence[Tensor]) -> Convolution:
    """Arrange a weight over the tables' columns, side by side.

    Conv2d: (filters, channels, width, inputs). Conv1d: (filters, inputs, width), or over flattened
    rows (filters, channels, width * inputs), with a stride of the inputs.
    """
    weight, total = module.weight, sum(table.shape[1] for table in tables)
    if weight.dim() == 3 and tables and weight.shape[1] != total:
        width, rest = divmod(weight.shape[2], each := tables[0].shape[1])
        if rest or not width or weight.shape[1] * each != total:
            raise _misfit(module, tables)
        weight = weight.view(len(weight), -1, width, each)
    weight = weight.transpose(1, 2)
    if weight.dim() == 4:
        weight = weight.flatten(2)
    if tables and weight.shape[2] != total:
        raise _misfit(module, tables)
    return Convolution(weight, module.bias)


def _misfit(module: Module, tables: Sequence[Tensor]) -> CheckpointError:
    widths = " and ".join(str(table.shape[1]) for table in tables)
    return CheckpointError(
        f"{module.name}.weight has shape {list(module.weight.shape)}, which does not read "
        f"embeddings of {widths} columns; give each channel an embedding of its own"
    )
