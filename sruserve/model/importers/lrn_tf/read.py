"""The LRN repository's document classifier: words, both directions of a cell, attention, labels."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.files import read_regular
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.row_layers import ActivationLayer, LinearLayer
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.lrn_tf import cells, words
from sruserve.model.importers.lrn_tf.variables import ADVICE, Variables, find
from sruserve.model.importers.options import agree, flag, known, shown
from sruserve.model.importers.tensorflow.bundle import Bundle
from sruserve.model.names import Task

_ATTENTION = "hierarchy/word_level/att/"
_HEAD = {
    *(f"{_ATTENTION}{name}/{end}" for name in ("m_tensor", "m_init") for end in ("W_0_0", "b_0")),
    f"{_ATTENTION}sore/W_0_0",
    "label/W_0_0",
    "label/b_0",
}
_FLAGS = ("use_char", "layer_norm", "enable_bert", "enable_hierarchy", "lower")
_SIZES = ("hidden_size", "embed_size", "char_embed_size")
_OPTIONS = {"cell", "ema_decay", "max_w_len", *_FLAGS, *_SIZES}
_LARGEST_OPTIONS = 1 << 20  # bytes


def read(path: Path, options: Options | None, task: Task) -> Imported:
    """See `FileFormat`. Options are those of `param.json`, which is beside the checkpoint.

    The variables show the cell and all sizes. `ema_decay` above 0 means the moving averages of the
    weights, with which the repository evaluates; without it, they are read if there are any.
    """
    if task != "classify":
        raise OptionError(
            f"the network labels whole texts: import it with --task classify, not {task}"
        )
    prefix, bundle = _open(path)
    arguments = _arguments(prefix.parent) | known(options, _OPTIONS)
    variables = Variables(bundle, _number(arguments, "ema_decay"))
    kind, has_characters = cells.kind_of(variables.names), "char_embeddings" in variables.names
    _check_names(variables, kind, has_characters)
    table = words.embedding(variables)
    from_weights = {"cell": kind, "embed_size": table.shape[1], "use_char": has_characters}
    notes = [_PADDING]
    if has_characters:
        features = _characters(variables, arguments, prefix.parent, len(table))
        from_weights["char_embed_size"] = features.shape[1]
        table = torch.cat((table, features), 1)
        notes.append(_UNKNOWN)
    tensors, rnn = cells.stack(variables, kind, table.shape[1])
    head_tensors, head = _head(variables, rnn.output_size)
    _agree(arguments, from_weights | {"hidden_size": rnn.layer_hidden(0)})
    if variables.averaged:
        notes.append(_AVERAGED)
    if flag(arguments, "lower", False):
        notes.append("the training put words into lower case: import with --lowercase")
    return Imported(
        tensors | head_tensors | {"embedding.weight": table},
        rnn,
        vocab_size=len(table),
        head=head,
        steps="last",
        notes=tuple(notes),
        reads_unknown_words=not has_characters,
    )


_PADDING = "id 0 is padding, which the repository skips and a server reads: do not send it"
_UNKNOWN = (
    "the network reads the characters of each word; an id shows those of the vocabulary's words "
    "only, so id 1, the unknown word, has none: do not send it"
)
_AVERAGED = (
    "the moving averages of the weights are imported, with which the repository evaluates; "
    '{"ema_decay": 0} in --options imports the weights themselves'
)


_OPTIONS_FILE = "copy the training's file again, or remove it and pass its options in --options"


def _open(path: Path) -> tuple[Path, Bundle]:
    try:
        prefix = find(path)
        return prefix, Bundle(prefix)
    except CheckpointError as error:
        raise CheckpointError(f"{error}. {ADVICE}") from error


def _arguments(folder: Path) -> dict[str, Any]:
    """Return the relevant arguments in `param.json`; none without the file."""
    path = folder / "param.json"
    try:
        content = json.loads(read_regular(path, _LARGEST_OPTIONS))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not valid JSON: {error}; {_OPTIONS_FILE}") from error
    if not isinstance(content, dict):
        raise OptionError(f"{path} must hold a JSON object; {_OPTIONS_FILE}")
    return {name: value for name, value in content.items() if name in _OPTIONS}


def _characters(variables: Variables, arguments: Options, folder: Path, count: int) -> Tensor:
    """Return the features of the characters of all `count` words."""
    folders = (folder, folder.parent)  # the best checkpoint is in a folder below the others
    spelt = words.read_entries(folders, "vocab.word", flag(arguments, "lower", False))
    chars = words.read_entries(folders, "vocab.char")
    if len(spelt) != count:
        raise CheckpointError(
            f"vocab.word has {len(spelt)} entries, but the embeddings have {count} rows: use the "
            "file that this training wrote"
        )
    return words.characters(variables, spelt, chars, _longest(arguments))


def _number(arguments: Options, name: str) -> float | None:
    value = arguments.get(name)
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise OptionError(f"--options: {name} is {shown(value)}; it must be a number")


def _longest(arguments: Options) -> int:
    """Return the number of characters that the network reads of a word."""
    longest = arguments.get("max_w_len")
    if type(longest) is not int or longest < 1:
        raise OptionError(
            'the network reads the characters of words: pass their number in a word, "max_w_len", '
            "of the training's param.json in --options"
        )
    return longest


def _agree(arguments: Options, from_weights: Mapping[str, Any]) -> None:
    """Raise an error where an option contradicts the variables."""
    stated = {name: arguments[name] for name in (*_SIZES, "cell") if name in arguments}
    stated |= {name: flag(arguments, name, False) for name in _FLAGS if name in arguments}
    if isinstance(stated.get("cell"), str):
        stated["cell"] = stated["cell"].lower()
    others = {"layer_norm": False, "enable_bert": False, "enable_hierarchy": False}
    agree(stated, {k: v for k, v in {**others, **from_weights}.items() if k in stated})


def _check_names(variables: Variables, kind: str, has_characters: bool) -> None:
    expected = words.TABLES | cells.names_of(kind) | _HEAD
    expected |= words.CHARACTERS if has_characters else set()
    if missing := sorted(expected - set(variables.names)):
        raise CheckpointError(f"the variable {missing[0]} is missing. {ADVICE}")
    if others := sorted(set(variables.names) - expected):
        raise CheckpointError(f"the variable {shown(others[0])} is not expected. {ADVICE}")


def _head(variables: Variables, width: int) -> tuple[dict[str, Tensor], HeadConfig]:
    """Return the attention, whose scores also read both directions' final states, and the labels.

    s_t = v . tanh(W h_t + b + U [h_end] + d), as one linear layer of both.
    """
    size, labels = variables.size(f"{_ATTENTION}m_tensor/b_0"), variables.size("label/b_0")
    linears = [
        (
            variables.read(f"{_ATTENTION}{name}/W_0_0", width, size),
            variables.read(f"{_ATTENTION}{name}/b_0", size),
        )
        for name in ("m_tensor", "m_init")
    ]
    tensors = {
        "pool.0.weight": torch.cat([weight for weight, _ in linears]).T.contiguous(),
        "pool.0.bias": linears[0][1] + linears[1][1],
        "pool.2.weight": variables.read(f"{_ATTENTION}sore/W_0_0", size, 1).T.contiguous(),
        "output.weight": variables.read("label/W_0_0", width, labels).T.contiguous(),
        "output.bias": variables.read("label/b_0", labels),
    }
    layers = (
        LinearLayer(type="linear", size=size),
        ActivationLayer(type="activation", function="tanh"),
        LinearLayer(type="linear", size=1, bias=False),
    )
    return tensors, HeadConfig(
        pooling="attention", attention=layers, attention_final=True, activation="softmax"
    )
