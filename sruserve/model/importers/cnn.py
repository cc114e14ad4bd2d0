"""Kim's convolutional network for sentences (Kim 2014), as people write it in PyTorch."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sruserve.model.cells.cnn import CNNConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.cnn_modules import (
    MODULE,
    Convolution,
    arranged,
    convolution_modules,
)
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.names import short
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import agree, known, make, shown
from sruserve.model.importers.tensors import floats, matrix_of
from sruserve.model.names import Task

_ATTRIBUTE = re.compile(r"(?:.+\.)?conv[0-9]+")  # not one of a list
_NAMES = {"input_size", "hidden_size", "filter_widths"}
_OPTIONS = {"padding", "min_length", "padding_idx", "activation", "channels"}
_TRAINING = {"dropout", "static", "mode"}


def recognises(names: Collection[str]) -> bool:
    """Whether there are modules `conv…`, and no recurrent ones."""
    return any(map(MODULE.fullmatch, names)) and not any("weight_hh" in name for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Format`. Embedding and linear layer may have any names.

    options: `padding`, zeros around an input: a number, a list with one per width, or "full" for
    width - 1. `min_length`: the length that shorter inputs are filled up to; `padding_idx`, the
    id that they are filled with. `activation`, before the maximum. `channels`: the names of the
    embeddings that the convolutions read, in order.
    """
    tensors = floats(tensors)
    modules = convolution_modules(tensors)
    arguments = known(options, _NAMES | _OPTIONS, _TRAINING)
    own = {key: arguments.pop(key) for key in _OPTIONS if key in arguments}
    rest = {name: t for name, t in tensors.items() if not MODULE.fullmatch(name)}
    tables, unused = _tables(rest, own.get("channels"))
    rest = {name: t for name, t in rest.items() if name not in (*tables, *unused)}
    convolutions = [arranged(module, list(tables.values())) for module in modules]
    for convolution in convolutions:
        if convolution.inputs != convolutions[0].inputs:
            raise CheckpointError(
                f"{modules[0].name} reads {convolutions[0].inputs} numbers in a step, but another "
                f"convolution {convolution.inputs}: only convolutions side by side are served, not "
                "one after another"
            )
    assumed: list[str] = []
    fields = _fields(convolutions, own, modules[0].name, assumed)
    agree(arguments, {name: fields[name] for name in _NAMES})
    converted = {
        f"rnn.convs.{i}.{name}": tensor
        for i, convolution in enumerate(convolutions)
        for name, tensor in convolution.tensors().items()
    }
    if tables:
        rest["embedding.weight"] = _joined(tables)
    around, size, head = vocabulary_and_head(rest, task, make(CNNConfig, fields))
    if (pad := _pad(own, around, assumed, make(CNNConfig, fields))) is not None:
        converted["rnn.pad"], fields["pad_row"] = pad, True
    return Imported(
        around | converted,
        make(CNNConfig, fields),
        vocab_size=size,
        head=head,
        assumed=tuple(assumed),
        notes=tuple(f"{short(name)} is left out: channels does not name it" for name in unused),
    )


def _tables(tensors: Mapping[str, Tensor], channels: object) -> tuple[dict[str, Tensor], list[str]]:
    """Return the embeddings in the order of the channels, and the names of those not used.

    Empty if the only embedding has a name without "emb", and for features.
    """
    own = {
        name: tensor
        for name, tensor in tensors.items()
        if "emb" in name.lower() and tensor.dim() == 2 and _bias_of(name) not in tensors
    }
    if channels is None:
        if len(own) > 1:
            raise OptionError(
                f'{len(own)} embeddings ({", ".join(map(short, list(own)[:4]))}): pass "channels" '
                "in --options, a list of the names of those that the convolutions read, in order"
            )
        return own, []
    if not isinstance(channels, list) or not channels:
        raise OptionError(
            f"--options: channels is {shown(channels)}; it must be a list of embeddings' names"
        )
    names = [str(name).removesuffix(".weight") + ".weight" for name in channels]
    for name in names:
        if matrix_of(tensors, name) is None:
            raise OptionError(
                f"--options: channels: there is no matrix {shown(name)}; name embeddings of the "
                "checkpoint"
            )
    if len(set(names)) < len(names):
        raise OptionError("--options: channels names an embedding twice; name each once")
    return {name: tensors[name] for name in names}, [name for name in own if name not in names]


def _bias_of(name: str) -> str:
    return name.removesuffix("weight") + "bias"


def _joined(tables: Mapping[str, Tensor]) -> Tensor:
    """Return the tables side by side, or raise `CheckpointError`."""
    if len({len(table) for table in tables.values()}) > 1:
        raise CheckpointError(
            f"{', '.join(map(short, tables))} have different numbers of rows; channels read the "
            "same ids: pad the smaller one, or train them over one vocabulary"
        )
    return torch.cat(list(tables.values()), 1)


def _fields(
    convolutions: Sequence[Convolution], own: Options, name: str, assumed: list[str]
) -> dict[str, Any]:
    """Return the fields of the config; appends what neither weights nor options say."""
    counts = [len(convolution.weight) for convolution in convolutions]
    widths = [convolution.weight.shape[1] for convolution in convolutions]
    fields: dict[str, Any] = {
        "input_size": convolutions[0].inputs,
        "hidden_size": counts[0] if len(set(counts)) == 1 else tuple(counts),
        "filter_widths": tuple(widths),
        "bias": convolutions[0].bias is not None,
    }
    padding = own.get("padding")
    if padding is None and _ATTRIBUTE.fullmatch(name):
        raise OptionError(
            '"padding" is not stored in a state dict, and networks with conv1, conv2, … differ in '
            'it: pass it in --options, 0 for none, "full" for the width - 1 zeros of '
            "Conv2d(…, padding=(width - 1, 0))"
        )
    if padding is None:
        assumed.append("padding 0")
        padding = 0
    fields["padding"] = tuple(w - 1 for w in widths) if padding == "full" else padding
    if "activation" not in own:
        assumed.append("relu before the maximum")
    fields |= {key: own[key] for key in ("min_length", "activation") if key in own}
    return fields


def _pad(
    own: Options, tensors: Mapping[str, Tensor], assumed: list[str], config: CNNConfig
) -> Tensor | None:
    """Return the row that fills short inputs up; None for zeros."""
    index, table = own.get("padding_idx"), tensors.get("embedding.weight")
    if index is None:
        if config.shortest > 1:
            assumed.append(f"zeros after inputs of fewer than {config.shortest} steps")
        return None
    if table is None or type(index) is not int or not 0 <= index < len(table):
        raise OptionError(
            f"--options: padding_idx is {shown(index)}, which is no row of embedding: "
            "pass the padding_idx of the training"
        )
    row = table[index]
    if not row.any():
        return None
    if any(padding for *_, padding in config.convolutions):
        raise OptionError(
            f"--options: padding_idx: row {index} of the embedding is not zeros, and beside "
            "padding only zeros can fill an input up: omit padding_idx, or set the row to zeros"
        )
    return row.clone()
