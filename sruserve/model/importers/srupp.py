"""Checkpoints of SRU++ (`sru` 3.0.0.dev1 to dev6): bare stacks, and its experiments' models."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from sruserve.model.cells.srupp import SRUppConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import agree, flag, known, make, shown
from sruserve.model.importers.origin import Imported, Options
from sruserve.model.importers.srupp_adaptive import adaptive, is_adaptive
from sruserve.model.importers.srupp_norms import norms
from sruserve.model.importers.tensors import NUMBER, floats, layers_of, matrix_of, need, rest_of
from sruserve.model.names import Task

_TRAINING = {
    "dropout",
    "attn_dropout",
    "highway_bias",
    "nn_rnn_compatible_return",
    "weight_c_init",
}
_KNOWN = {
    "input_size",
    "hidden_size",
    "proj_size",
    "num_layers",
    "num_heads",
    "window",
    "bidirectional",
    "layer_norm",
    "normalize_after",
    "attn_layer_norm",
    "normalization_type",
    "attention_every_n_layers",
    "attention_last_n_layers",
    "rescale",
    "proj_input_to_hidden_first",
    "scale_emb",
}
_NEEDED = {
    "num_heads": "the number of attention heads",
    "window": "how many positions before its own a step attends to, eval_unroll_size in the "
    "experiments; null where it attends to the whole input",
}
_LAYER = rf"rnn_lst\.{NUMBER}\."


def recognises(names: Collection[str]) -> bool:
    """Whether there is a layer of an `sru.SRUpp`: only its modules have a `linear1`."""
    pattern = rf"(.*\.)?{_LAYER}transform_module\.linear1\.weight"
    return any(re.fullmatch(pattern, name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """Convert a state dict of an `sru.SRUpp`, alone or with embedding and output layer.

    options: arguments of the constructor of the release that trained it, with its defaults for
        what is left out; `window`; and `scale_emb` of an adaptive embedding.
    """
    if options is None:
        raise OptionError(
            "num_heads, window and bidirectional are not stored in a state dict: pass them in "
            "--options FILE, a JSON object of the arguments that sru.SRUpp was made with, and "
            f"window: {_NEEDED['window']}"
        )
    tensors = floats(tensors)
    found = {m[1] for name in tensors if (m := re.match(rf"((?:[^.]+\.)*){_LAYER}", name))}
    if len(found) != 1:
        raise CheckpointError(
            "no rnn_lst.* tensors: this is no checkpoint of an sru.SRUpp"
            if not found
            else f"{len(found)} stacks ({', '.join(sorted(found))[:80]}): save one of them alone"
        )
    stack = found.pop()
    given = known(options, _KNOWN, _TRAINING)
    layers = layers_of(tensors, re.escape(stack) + _LAYER)
    into = matrix_of(tensors, f"{stack}input_to_hidden.weight")
    others = rest_of(tensors, rf"{re.escape(stack)}({_LAYER}|input_to_hidden\.weight\Z)")
    placement = norms(layers, given)
    config = _config(layers, into, given, placement, alone=not others)
    own = {f"rnn_lst.{i}.{name}": t for i, layer in enumerate(layers) for name, t in layer.items()}
    if into is not None:
        own["input_to_hidden.weight"] = into
    rnn = {f"rnn.{name}": tensor for name, tensor in own.items()}
    if is_adaptive(others):
        rest, size, embedding, head = adaptive(others, given, config)
        return Imported(rest | rnn, config, size, embedding, head)
    if "scale_emb" in given:
        raise OptionError("option scale_emb is for an adaptive embedding, and there is none")
    rest, vocab_size, head = vocabulary_and_head(others, task)
    return Imported(rest | rnn, config, vocab_size=vocab_size, head=head)


def _config(
    layers: Sequence[Mapping[str, Tensor]],
    into: Tensor | None,
    given: Mapping[str, Any],
    placement: Mapping[str, bool],
    alone: bool,
) -> SRUppConfig:
    """The stack; sizes and modules come from the tensors, the rest from what is given."""
    outputs = len(need(layers[0], "bias", 1, "rnn_lst.0.")) // 2
    narrow = need(layers[0], "transform_module.linear1.weight", 2, "rnn_lst.0.")
    bidirectional = _bidirectional(given, outputs, alone)
    attends = ["transform_module.linear3.weight" in layer for layer in layers]
    for name, meaning in _NEEDED.items():
        if any(attends) and name not in given:
            raise OptionError(
                f"{name} is not stored in a state dict: pass it in --options ({meaning})"
            )
    scales = [layer["scale_x"] for layer in layers if "scale_x" in layer]
    asked = {n: v for n, v in given.items() if n not in ("normalization_type", "scale_emb")}
    asked = {n: v for n, v in asked.items() if n not in placement}
    found: dict[str, Any] = {
        "num_layers": len(layers),
        "input_size": narrow.shape[1] if into is None else into.shape[1],
        "hidden_size": outputs // (2 if bidirectional else 1),
        "proj_size": len(narrow),
        "bidirectional": bidirectional,
    }
    if into is not None:
        found["proj_input_to_hidden_first"] = True
    fields: dict[str, Any] = {"window": None} | agree(asked, found) | _attention(attends, given)
    fields["alpha"] = any("transform_module.alpha" in layer for layer in layers)
    # The releases store 1 unless they rescale.
    fields["rescale"] = flag(given, "rescale", any((scale != 1).any() for scale in scales))
    return make(SRUppConfig, {**fields, **placement})


def _bidirectional(given: Mapping[str, Any], outputs: int, alone: bool) -> bool:
    """Told by its option, by `hidden_size`, or by a language model, which cannot be."""
    if "bidirectional" in given:
        return flag(given, "bidirectional", False)
    if "hidden_size" in given:
        hidden = given["hidden_size"]
        if type(hidden) is not int:
            raise OptionError(f"--options: hidden_size is {shown(hidden)}, not a whole number")
        return bool(2 * hidden == outputs)
    if alone:
        raise OptionError(
            "bidirectional is not stored in a state dict: pass it, or hidden_size, in --options"
        )
    return False


def _attention(attends: Sequence[bool], given: Mapping[str, Any]) -> dict[str, int]:
    """Which layers attend, in the constructor's terms."""
    count = len(attends)
    every, last = "attention_every_n_layers", "attention_last_n_layers"
    tries = [{every: n, last: -1} for n in range(1, count + 2)]
    tries += [{every: 1, last: n} for n in range(1, count + 1)]
    if every in given or last in given:
        tries.insert(0, {every: given.get(every, 1), last: given.get(last, -1)})
    for fields in tries:
        n, m = fields[every], fields[last]
        if type(n) is not int or type(m) is not int or n < 1:
            raise OptionError(f"--options: {every} and {last} must be whole numbers")
        rule = [count - i <= m if m != -1 else (i + 1) % n == 0 for i in range(count)]
        if rule == list(attends):
            return fields
        if every in given or last in given:
            raise CheckpointError(
                f"{every} is {shown(n)} and {last} {shown(m)}; the weights say otherwise"
            )
    raise CheckpointError("which layers have a linear3 fits neither every n layers nor the last n")
