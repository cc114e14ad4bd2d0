"""Checkpoints of SRU++ (`sru` 3.0.0.dev1 to dev6): bare stacks, and models of its experiments."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from sruserve.model.cells.srupp import SRUppConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.names import wrong_format
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.options import CORRECT, agree, flag, known, make, shown
from sruserve.model.importers.srupp_adaptive import adaptive, is_adaptive
from sruserve.model.importers.srupp_norms import norms
from sruserve.model.importers.tensors import (
    MISFIT,
    NUMBER,
    floats,
    layers_of,
    matrix_of,
    need,
    rest_of,
)
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
    "window": "the number of positions before its own that a step attends to, eval_unroll_size in "
    "the experiments; null if it attends to the whole input",
}
_LAYER = rf"rnn_lst\.{NUMBER}\."


def recognises(names: Collection[str]) -> bool:
    """Whether there is a layer of an `sru.SRUpp`: only its modules have a `linear1`."""
    pattern = rf"(.*\.)?{_LAYER}transform_module\.linear1\.weight"
    return any(re.fullmatch(pattern, name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """Convert a state dict of an `sru.SRUpp`, alone or with embedding and output layer.

    options: arguments of the constructor of the release that trained it, with its defaults for
        missing ones; `window`; and `scale_emb` of an adaptive embedding.

    Raises `CheckpointError` or `OptionError`.
    """
    if options is None:
        raise OptionError(
            "num_heads, window and bidirectional are not stored in a state dict: pass them in "
            "--options FILE, a JSON object of the arguments that sru.SRUpp was created with, and "
            f"window: {_NEEDED['window']}"
        )
    tensors = floats(tensors)
    prefixes = {m[1] for name in tensors if (m := re.match(rf"((?:[^.]+\.)*){_LAYER}", name))}
    if not prefixes:
        raise wrong_format("rnn_lst.*", "an sru.SRUpp", tensors)
    if len(prefixes) > 1:
        raise CheckpointError(
            f"{len(prefixes)} stacks ({', '.join(sorted(prefixes))[:80]}): save one alone"
        )
    stack = prefixes.pop()
    arguments = known(options, _KNOWN, _TRAINING)
    layers = layers_of(tensors, re.escape(stack) + _LAYER)
    into = matrix_of(tensors, f"{stack}input_to_hidden.weight")
    others = rest_of(tensors, rf"{re.escape(stack)}({_LAYER}|input_to_hidden\.weight\Z)")
    placement = norms(layers, arguments)
    config = _config(layers, into, arguments, placement, alone=not others)
    own = {f"rnn_lst.{i}.{name}": t for i, layer in enumerate(layers) for name, t in layer.items()}
    if into is not None:
        own["input_to_hidden.weight"] = into
    rnn = {f"rnn.{name}": tensor for name, tensor in own.items()}
    if is_adaptive(others):
        rest, size, embedding, head = adaptive(others, arguments, config)
        return Imported(rest | rnn, config, size, embedding, head)
    if "scale_emb" in arguments:
        raise OptionError(
            "option scale_emb needs an adaptive embedding, and there is none: leave it out"
        )
    rest, vocab_size, head = vocabulary_and_head(others, task, config)
    return Imported(rest | rnn, config, vocab_size=vocab_size, head=head)


def _config(
    layers: Sequence[Mapping[str, Tensor]],
    into: Tensor | None,
    arguments: Mapping[str, Any],
    placement: Mapping[str, bool],
    alone: bool,
) -> SRUppConfig:
    """Return the stack's config; options have what the tensors do not show."""
    outputs = len(need(layers[0], "bias", 1, "rnn_lst.0.")) // 2
    narrow = need(layers[0], "transform_module.linear1.weight", 2, "rnn_lst.0.")
    bidirectional = _bidirectional(arguments, outputs, alone)
    attends = ["transform_module.linear3.weight" in layer for layer in layers]
    for name, meaning in _NEEDED.items():
        if any(attends) and name not in arguments:
            raise OptionError(
                f"{name} is not stored in a state dict: pass it in --options ({meaning})"
            )
    scales = [layer["scale_x"] for layer in layers if "scale_x" in layer]
    stack_options = {
        n: v for n, v in arguments.items() if n not in ("normalization_type", "scale_emb")
    }
    stack_options = {n: v for n, v in stack_options.items() if n not in placement}
    from_weights: dict[str, Any] = {
        "num_layers": len(layers),
        "input_size": narrow.shape[1] if into is None else into.shape[1],
        "hidden_size": outputs // (2 if bidirectional else 1),
        "proj_size": len(narrow),
        "bidirectional": bidirectional,
    }
    if into is not None:
        from_weights["proj_input_to_hidden_first"] = True
    fields: dict[str, Any] = (
        {"window": None} | agree(stack_options, from_weights) | _attention(attends, arguments)
    )
    fields["alpha"] = any("transform_module.alpha" in layer for layer in layers)
    # The releases store a scale of 1 unless they rescale.
    fields["rescale"] = flag(arguments, "rescale", any((scale != 1).any() for scale in scales))
    return make(SRUppConfig, {**fields, **placement})


def _bidirectional(arguments: Mapping[str, Any], outputs: int, alone: bool) -> bool:
    """Whether the stack is bidirectional, by option or `hidden_size`; a language model never is."""
    if "bidirectional" in arguments:
        return flag(arguments, "bidirectional", False)
    if "hidden_size" in arguments:
        hidden = arguments["hidden_size"]
        if type(hidden) is not int:
            raise OptionError(f"--options: hidden_size is {shown(hidden)}; it must be an integer")
        return bool(2 * hidden == outputs)
    if alone:
        raise OptionError(
            "bidirectional is not stored in a state dict: pass it, or hidden_size, in --options"
        )
    return False


def _attention(attends: Sequence[bool], arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return the constructor's arguments for the layers that attend."""
    count = len(attends)
    every, last = "attention_every_n_layers", "attention_last_n_layers"
    tries = [{every: n, last: -1} for n in range(1, count + 2)]
    tries += [{every: 1, last: n} for n in range(1, count + 1)]
    if every in arguments or last in arguments:
        tries.insert(0, {every: arguments.get(every, 1), last: arguments.get(last, -1)})
    for fields in tries:
        n, m = fields[every], fields[last]
        if type(n) is not int or type(m) is not int or n < 1:
            raise OptionError(
                f"--options: {every} is {shown(n)} and {last} is {shown(m)}; they must be "
                "integers, the first one at least 1"
            )
        rule = [count - i <= m if m != -1 else (i + 1) % n == 0 for i in range(count)]
        if rule == list(attends):
            return fields
        if every in arguments or last in arguments:
            raise CheckpointError(
                f"option {every} is {shown(n)} and {last} is {shown(m)}, but in the weights other "
                f"layers attend: {CORRECT}"
            )
    raise CheckpointError(
        "the layers with a linear3 are neither every n-th layer nor the last n layers, which "
        f"sru.SRUpp cannot make: {MISFIT}"
    )
