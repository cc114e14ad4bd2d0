"""DrQA's reader with SRU: one of its two encoders, over features, both directions."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import agree, make
from sruserve.model.importers.origin import Imported, Options
from sruserve.model.importers.sru_stack import read_stack
from sruserve.model.importers.tensors import NUMBER, floats, layers_of, need
from sruserve.model.names import Task

_ENCODERS = ("doc_rnn", "question_rnn")


def recognises(names: Collection[str]) -> bool:
    """A reader's two stacks of `SRUCell`."""
    return any(re.match(r"(doc|question)_rnn\.rnns\.[0-9]+\.", name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Origin`. What DrQA passes to its cells is the default: bidirectional, no tanh.

    Its options are those of `SRUCell`, and `encoder`, and `concat_layers`, which the reader's
    attention tells too: whether outputs are those of all layers, side by side.
    """
    if not recognises(tensors):
        raise CheckpointError(
            "no doc_rnn.rnns.* or question_rnn.rnns.* tensors: this is no checkpoint of DrQA"
        )
    given = dict(options or {})
    encoder = given.pop("encoder", None)
    if encoder not in _ENCODERS:
        raise OptionError(
            f'a DrQA checkpoint has two encoders: pass "encoder" in --options, {_ENCODERS[0]!r} or '
            f"{_ENCODERS[1]!r}"
        )
    if task != "encode":
        raise OptionError("an encoder of DrQA is imported with --task encode: it has no head")
    layers = layers_of(floats(tensors), rf"{encoder}\.rnns\.{NUMBER}\.")
    if not layers:
        raise CheckpointError(f"no {encoder}.rnns.* tensors: this is no checkpoint of DrQA")
    said = given.pop("concat_layers", None)
    passed = {"bidirectional": True, "use_tanh": False, **given}
    rnn, config = read_stack(layers, (), None, passed, cells=True)
    attention = tensors.get("start_attn.linear.weight")  # (document's width, question's width)
    if attention is not None:
        need(tensors, "start_attn.linear.weight", 2)
        width = attention.shape[_ENCODERS.index(encoder)]
        concat = width == len(layers) * config.output_size
        agree({} if said is None else {"concat_layers": said}, {"concat_layers": concat})
    elif said is None:
        raise OptionError('"concat_layers" cannot be told from these weights: pass it in --options')
    else:
        concat = said
    config = make(type(config), {**config.model_dump(), "concat_layers": concat})
    return Imported(rnn, config)
