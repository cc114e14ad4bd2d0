"""Checkpoints of `torch.nn.LSTM`, `GRU` and `RNN`, alone or between an embedding and a linear."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.cells.gated import GatedConfig, GRUConfig, LSTMConfig, RNNConfig
from sruserve.model.config import Task, explain
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.heads import HeadConfig
from sruserve.model.importers.origin import Imported, Options

name = "torch"

_PART = re.compile(r"(.*?)(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l(\d{1,4})(_reverse)?")
_TRAINING_ONLY = {"batch_first", "dropout", "device", "dtype"}
_KINDS: dict[int, type[GatedConfig]] = {4: LSTMConfig, 3: GRUConfig, 1: RNNConfig}


def recognises(names: Collection[str]) -> bool:
    """Whether tensors of these names hold one recurrent module of torch."""
    return len(_prefixes(names)) == 1


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """Convert a state dict; see `Origin.read`.

    options: arguments of the module's constructor, and `pooling`. Only an RNN's `nonlinearity`
    is not stored.
    """
    prefixes = _prefixes(tensors)
    if len(prefixes) != 1:
        found = ", ".join(sorted(prefixes)) or "none"
        raise CheckpointError(
            "a checkpoint of torch has one recurrent module, with weight_hh_l0 in its tensors' "
            f"names; modules of this one: {found}"
        )
    (prefix,) = prefixes
    stack = {
        key.removeprefix(prefix): tensor.float()
        for key, tensor in tensors.items()
        if _PART.fullmatch(key)
    }
    given = {key: value for key, value in (options or {}).items() if key not in _TRAINING_ONLY}
    pooling = given.pop("pooling", "last")
    rnn = _describe(stack, given)
    renamed = {f"rnn.{key}": tensor for key, tensor in stack.items()}
    rest = {key: tensor for key, tensor in tensors.items() if not _PART.fullmatch(key)}
    embedding, output, bias = _around(rest, rnn, task)
    tied = embedding is not None and output is not None and _same(rest[embedding], rest[output])
    if embedding is not None:
        renamed["embedding.weight"] = rest[embedding].float()
    if output is not None and not tied:
        renamed["output.weight"] = rest[output].float()
    if bias is not None:
        renamed["output.bias"] = rest[bias].float()
    try:
        head = HeadConfig(pooling=pooling, tied=tied, bias=bias is not None or output is None)
    except ValidationError as error:
        raise OptionError(f"--options: {explain(error)}") from error
    vocabulary = None if embedding is None else len(rest[embedding])
    return Imported(renamed, rnn, vocabulary, head=head)


def _prefixes(names: Collection[str]) -> set[str]:
    """What stands before the names of each recurrent module's tensors."""
    return {part[1] for part in map(_PART.fullmatch, names) if part and part[2] == "weight_hh"}


def _describe(stack: Mapping[str, Tensor], given: dict[str, Any]) -> GatedConfig:
    """The stack that the tensors belong to; their names and shapes tell all but the options."""
    sizes = _sizes(stack)
    rows, hidden = _matrix(stack, "weight_hh_l0").shape
    projected = "weight_hr_l0" in stack
    gates = 4 if projected else rows // hidden
    config = _KINDS.get(gates)
    if config is None or rows % gates or (not projected and rows != gates * hidden):
        raise CheckpointError(
            f"weight_hh_l0 is {rows} x {hidden}: an LSTM has 4 times as many rows as columns, a "
            "GRU 3 times, an RNN as many"
        )
    if projected:
        sizes |= {"hidden_size": rows // gates, "proj_size": hidden}
    elif config is LSTMConfig:
        sizes["proj_size"] = 0
    if config is RNNConfig and "nonlinearity" not in given:
        raise OptionError(
            '"nonlinearity" is not stored in a state dict: pass it in --options, "tanh" (what '
            'torch.nn.RNN takes unless told) or "relu"'
        )
    for key, found in sizes.items():
        if given.setdefault(key, found) != found:
            raise CheckpointError(f"option {key} is {given[key]}; the weights say {found}")
    try:
        return config.model_validate(given)
    except ValidationError as error:
        raise OptionError(f"--options: {explain(error)}") from error


def _sizes(stack: Mapping[str, Tensor]) -> dict[str, Any]:
    parts = [part for part in map(_PART.fullmatch, stack) if part]
    if "weight_ih_l0" not in stack or "weight_hh_l0" not in stack:
        raise CheckpointError("weight_ih_l0 and weight_hh_l0 are needed; one of them is missing")
    return {
        "input_size": _matrix(stack, "weight_ih_l0").shape[1],
        "hidden_size": _matrix(stack, "weight_hh_l0").shape[1],
        "num_layers": max(int(part[3]) for part in parts) + 1,
        "bidirectional": any(part[4] for part in parts),
        "bias": any(part[2] == "bias_ih" for part in parts),
    }


def _matrix(stack: Mapping[str, Tensor], key: str) -> Tensor:
    if stack[key].dim() != 2:
        raise CheckpointError(f"{key} is misshapen: {list(stack[key].shape)} is no matrix")
    return stack[key]


def _around(
    rest: Mapping[str, Tensor], rnn: GatedConfig, task: Task
) -> tuple[str | None, str | None, str | None]:
    """The names of embedding, output matrix and output bias, told by shape and then by name."""
    if task == "encode" and not rest:
        return None, None, None
    embedding = _one("embedding", _embeddings(rest, rnn), required=task == "generate")
    if task == "encode":
        left = sorted(set(rest) - {embedding})
        if left:
            raise CheckpointError(
                f"{', '.join(left[:4])}: task encode has no output layer; import it with another "
                "task, or leave them out"
            )
        return embedding, None, None
    outputs = [
        key
        for key, tensor in rest.items()
        if tensor.dim() == 2 and tensor.shape[1] == rnn.output_size and key != embedding
    ]
    output = _one("output layer", outputs, required=embedding is None or task != "generate")
    if output is None:
        output = embedding  # a tied matrix may be stored once
    assert output is not None
    beside = [
        key
        for key, tensor in rest.items()
        if tensor.dim() == 1 and len(tensor) == len(rest[output]) and key.endswith("bias")
    ]
    bias = _one("output bias", beside, required=False)
    unused = sorted(set(rest) - {embedding, output, bias})
    if unused:
        raise CheckpointError(
            f"{', '.join(unused[:4])}: neither embedding, recurrent module nor output layer; such "
            "a network cannot be imported"
        )
    return embedding, output, bias


def _embeddings(rest: Mapping[str, Tensor], rnn: GatedConfig) -> list[str]:
    """Matrices as wide as the input that are no linear layer: their modules have no bias."""
    wide = [k for k, t in rest.items() if t.dim() == 2 and t.shape[1] == rnn.input_size]
    if len(wide) < 2 and any(k.removesuffix("weight") + "bias" in rest for k in wide):
        return []
    plain = [k for k in wide if k.removesuffix("weight") + "bias" not in rest]
    named = [k for k in plain if "emb" in k.lower()]
    return named or plain


def _one(what: str, names: list[str], required: bool) -> str | None:
    if len(names) > 1:
        raise CheckpointError(
            f"{', '.join(sorted(names)[:4])}: more than one could be the {what}; rename it to "
            f"{'embedding' if what == 'embedding' else 'output'}.weight and leave the others out"
        )
    if not names and required:
        raise CheckpointError(f"no tensor has the shape of the {what}, which this task needs")
    return names[0] if names else None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())
