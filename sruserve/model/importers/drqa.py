"""DrQA's reader with SRU: one of its two bidirectional encoders, over features."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.names import wrong_format
from sruserve.model.importers.options import agree, make
from sruserve.model.importers.sru_stack import read_stack
from sruserve.model.importers.tensors import NUMBER, floats, layers_of, need
from sruserve.model.names import Task

_ENCODERS = ("doc_rnn", "question_rnn")


def recognises(names: Collection[str]) -> bool:
    """Whether there is one of a reader's two stacks of `SRUCell`."""
    return any(re.match(r"(doc|question)_rnn\.rnns\.[0-9]+\.", name) for name in names)


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Format`. The defaults are DrQA's own: bidirectional, no tanh.

    options: arguments of `SRUCell`; `encoder`; and `concat_layers`, whether the outputs concatenate
        those of all layers, which the reader's attention also shows.
    """
    if not recognises(tensors):
        raise wrong_format("doc_rnn.rnns.* or question_rnn.rnns.*", "DrQA", tensors)
    arguments = dict(options or {})
    encoder = arguments.pop("encoder", None)
    if encoder not in _ENCODERS:
        raise OptionError(
            f'a DrQA checkpoint has two encoders: pass "encoder" in --options, {_ENCODERS[0]!r} or '
            f"{_ENCODERS[1]!r}"
        )
    if task != "encode":
        raise OptionError("an encoder of DrQA has no head: import it with --task encode")
    layers = layers_of(floats(tensors), rf"{encoder}\.rnns\.{NUMBER}\.")
    if not layers:
        raise CheckpointError(
            f"no {encoder}.rnns.* tensors: this is not a checkpoint of DrQA: "
            "choose another --format"
        )
    stated = arguments.pop("concat_layers", None)
    passed = {"bidirectional": True, "use_tanh": False, **arguments}
    rnn, config = read_stack(layers, (), None, passed, cells=True)
    attention = tensors.get("start_attn.linear.weight")  # (document's width, question's width)
    if attention is not None:
        need(tensors, "start_attn.linear.weight", 2)
        width = attention.shape[_ENCODERS.index(encoder)]
        concat = width == len(layers) * config.output_size
        agree({} if stated is None else {"concat_layers": stated}, {"concat_layers": concat})
    elif stated is None:
        raise OptionError('these weights do not show "concat_layers": pass it in --options')
    else:
        concat = stated
    config = make(type(config), {**config.model_dump(), "concat_layers": concat})
    return Imported(rnn, config)
