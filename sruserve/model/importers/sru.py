"""Checkpoints of `sru`, before 2.0 to 3.0.0.dev: bare stacks, and models of its scripts."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.names import wrong_format
from sruserve.model.importers.network import vocabulary_and_head
from sruserve.model.importers.sru_stack import read_stack
from sruserve.model.importers.tensors import NUMBER, floats, layers_of, matrix_of, rest_of
from sruserve.model.names import Task

_OWN = r"rnn_lst\.[0-9]{1,4}\.(weight|weight_c|custom_\w+\..*|transform_module\.([01]\.)?weight)"
_STACK = rf"((?:[^.]+\.)*)rnn_lst\.{NUMBER}\."
_CELL = {"weight_c", "bias"}


def recognises(names: Collection[str]) -> bool:
    """Whether there is a stack of `sru.SRU`, or one `sru.SRUCell`, but no SRU++."""
    own = any(re.fullmatch(rf"([^.]+\.)*{_OWN}", name) for name in names)
    attends = any(".transform_module.linear" in name for name in names)
    return (own and not attends) or set(names) >= _CELL


def read(tensors: Mapping[str, Tensor], options: Options | None, task: Task) -> Imported:
    """See `Format`. Stack, embedding and linear layer may have any names."""
    tensors = floats(tensors)
    cells = tensors.keys() >= _CELL
    if cells:
        tensors = {f"rnn_lst.0.{name}": tensor for name, tensor in tensors.items()}
    prefixes = {m[1] for name in tensors if (m := re.match(_STACK, name))}
    if not prefixes:
        raise wrong_format("rnn_lst.*", "an sru.SRU", tensors)
    if len(prefixes) > 1:
        raise CheckpointError(
            f"{len(prefixes)} stacks ({', '.join(sorted(prefixes))[:80]}): save one alone"
        )
    prefix = prefixes.pop()
    if any(".transform_module.linear1." in name for name in tensors):
        raise CheckpointError("the layers are those of an sru.SRUpp: use --format srupp")
    stack = re.escape(prefix)
    rnn, config = read_stack(
        layers_of(tensors, rf"{stack}rnn_lst\.{NUMBER}\."),
        layers_of(tensors, rf"{stack}ln_lst\.{NUMBER}\."),
        matrix_of(tensors, f"{prefix}input_to_hidden.weight"),
        options,
        cells,
    )
    others = rest_of(tensors, rf"{stack}((rnn|ln)_lst\.{NUMBER}\.|input_to_hidden\.weight\Z)")
    rest, vocab_size, head = vocabulary_and_head(others, task, config)
    return Imported(rest | rnn, config, vocab_size=vocab_size, head=head)
