"""The parts of a model folder from a chain of steps, for a task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from sruserve.model.config import explain
from sruserve.model.errors import CheckpointError
from sruserve.model.heads.config import HeadConfig, Scoring
from sruserve.model.heads.row_layers import ActivationLayer, LinearLayer, SelectLayer, output_width
from sruserve.model.importers.format import Imported
from sruserve.model.importers.wiring.affine import is_affine
from sruserve.model.importers.wiring.stack import BuiltStack, build_stack
from sruserve.model.importers.wiring.steps import (
    Array,
    Embed,
    Pool,
    Recurrent,
    Rows,
    Softmax,
    Step,
    linear,
    select,
)
from sruserve.model.names import Task


@dataclass(frozen=True, eq=False)
class _Chain:
    """The steps by their places in a model folder."""

    embedding: Embed | None
    inputs: list[Rows]
    stack: list[Recurrent | Rows]
    pool: Pool | None
    rows: list[Rows]
    softmax: bool


def assemble(
    steps: Sequence[Step], task: Task, features: int | None = None, notes: Sequence[str] = ()
) -> Imported:
    """Return the network; raises `CheckpointError` that names what cannot be served.

    features: the number of features of a step; None if the file does not say.
    notes: remarks for the user.
    """
    chain = _split(steps)
    try:
        return replace(_assemble(chain, task, features), notes=tuple(notes))
    except ValidationError as error:
        raise CheckpointError(f"the file does not fit together: {explain(error)}") from error


def _assemble(chain: _Chain, task: Task, features: int | None) -> Imported:
    stack = build_stack(chain.stack)
    head, rows = _pooling(chain, stack)
    every = chain.pool is None
    _check_task(task, chain, stack)
    tensors = {f"rnn.{name}": array for name, array in stack.tensors.items()}
    if chain.embedding is not None:
        tensors["embedding.weight"] = chain.embedding.table
    width = _input_width(chain, stack, features)
    tensors |= _named("input_layers", chain.inputs)
    if task != "encode":
        pooled = head.pooled_width(task, stack.config)
        head, own = _head(head, rows, pooled, task, chain.softmax)
        tensors |= own
    return Imported(
        {name: _float(array) for name, array in tensors.items()},
        stack.config,
        None if chain.embedding is None else len(chain.embedding.table),
        head=head,
        input_width=None if width == stack.config.input_size else width,
        input_layers=tuple(rows.layer for rows in chain.inputs),
        steps="every" if every else "last",
    )


def _split(steps: Sequence[Step]) -> _Chain:
    """Sort the steps by their places."""
    rest = list(steps)
    embedding = rest.pop(0) if rest and isinstance(rest[0], Embed) else None
    places = [i for i, step in enumerate(rest) if isinstance(step, Recurrent)]
    if not places:
        raise CheckpointError("the file has no LSTM, GRU or RNN layer: nothing here can serve it")
    softmax = isinstance(rest[-1], Softmax)
    after = rest[places[-1] + 1 : len(rest) - softmax]
    pools = [step for step in after if isinstance(step, Pool)]
    allowed = {id(step) for step in (*pools[:1], *rest[len(rest) - softmax :])}
    for step in rest:
        if not isinstance(step, (Rows, Recurrent)) and id(step) not in allowed:
            raise CheckpointError(f"{step.name} ({type(step).__name__.lower()}) cannot be there")
    inputs = [step for step in rest[: places[0]] if isinstance(step, Rows)]
    inner = rest[places[0] : places[-1] + 1]
    pool = pools[0] if pools else None
    before = after[: after.index(pool)] if pool is not None else []
    for step in before:
        assert isinstance(step, Rows)
        if pool is not None and not _commutes(step, pool):
            raise CheckpointError(
                f"{step.name} ({step.layer.type}) is between the recurrent layers and {pool.name} "
                f"({pool.kind} of all steps); only pooling of the recurrent layers' own outputs "
                "can be served"
            )
    return _Chain(
        embedding if isinstance(embedding, Embed) else None,
        inputs,
        [step for step in inner if isinstance(step, (Rows, Recurrent))],
        pool,
        [step for step in after if isinstance(step, Rows)],
        softmax,
    )


def _commutes(rows: Rows, pool: Pool) -> bool:
    """Whether a row layer may as well follow the pooling."""
    return pool.kind == "last" or (pool.kind == "mean" and is_affine(rows))


def _pooling(chain: _Chain, stack: BuiltStack) -> tuple[HeadConfig, list[Rows]]:
    """Return the pooling, and the rows after it."""
    pool, rows = chain.pool, chain.rows
    if pool is None or pool.kind != "final":
        if stack.padded:
            rows = [select(stack.layers[-1].name, [(0, stack.width)]), *rows]
        return HeadConfig(pooling="last" if pool is None else pool.kind), rows
    entries, ranges = stack.final(pool.ends)
    head = HeadConfig(pooling="final", final=entries)
    if ranges != [(0, sum(head.final_sizes(stack.config)))]:
        rows = [select(pool.name, ranges), *rows]
    return head, rows


def _check_task(task: Task, chain: _Chain, stack: BuiltStack) -> None:
    """Raise `CheckpointError` unless the network's answer is one of the task."""
    if task == "pair":
        raise CheckpointError(
            "the file describes a network of one input; --task pair needs a state dict"
        )
    if task == "encode" and (chain.pool or chain.rows or chain.softmax or stack.padded):
        raise CheckpointError(
            "--task encode returns the outputs of a bare stack at every step, but the file goes on "
            "after the recurrent layers: import it with --task classify, tag or regress"
        )
    if task == "generate" and chain.embedding is None:
        raise CheckpointError("task generate needs an embedding, and the file has none")
    if task == "tag" and chain.pool is not None:
        raise CheckpointError(
            f"--task tag labels every step, but {chain.pool.name} pools the steps to one row: "
            "import it with --task classify"
        )
    if task == "classify" and chain.pool is None:
        raise CheckpointError(
            "--task classify needs one answer for all steps, but this network answers at every "
            "step: import it with --task tag, or as values with --task regress"
        )


def _input_width(chain: _Chain, stack: BuiltStack, features: int | None) -> int:
    """Return the width of the embedding's rows or of the features."""
    if chain.embedding is not None:
        return int(chain.embedding.table.shape[1])
    if features is not None:
        return features
    layers = (rows for rows in chain.inputs if isinstance(rows.layer, LinearLayer))
    first = next(layers, None)
    return stack.config.input_size if first is None else int(first.tensors["weight"].shape[1])


def _head(
    head: HeadConfig, rows: list[Rows], width: int, task: Task, softmax: bool
) -> tuple[HeadConfig, dict[str, Array]]:
    """Return the head and its tensors: the last linear layer of `rows` is the output."""
    places = [i for i, step in enumerate(rows) if isinstance(step.layer, LinearLayer)]
    last = places[-1] if places else len(rows)
    layers, tail = rows[:last], rows[last + 1 :]
    scoring, rest = _scoring(task, tail, softmax)
    if last == len(rows) or (rest and (task != "regress" or _selects(rest))):
        # No linear layer ends the network, so one that changes nothing gives the scores.
        scoring, layers = _scoring(task, rows, softmax)
        rest = []
        outputs = output_width([step.layer for step in layers], width)
        output = linear("output", np.eye(outputs, dtype=np.float32), None)
    else:
        output = rows[last]
    tensors = {f"output.{name}": array for name, array in output.tensors.items()}
    tensors |= _named("head", layers) | _named("output_layers", rest)
    fields = {
        "layers": tuple(step.layer for step in layers),
        "output_layers": tuple(step.layer for step in rest),
        "bias": "bias" in output.tensors,
    }
    if scoring is not None:
        fields["activation"] = scoring
    return head.model_copy(update=fields), tensors


def _scoring(task: Task, tail: list[Rows], softmax: bool) -> tuple[Scoring | None, list[Rows]]:
    """Return what turns scores into the answers, None if the file does not say, and the rest."""
    if softmax:
        if task == "regress":
            raise CheckpointError(
                "the network ends in a softmax, which gives probabilities of classes: import it "
                "with --task classify or tag"
            )
        return (None if task == "generate" else "softmax"), tail
    ends_in_sigmoid = bool(tail) and isinstance(tail[-1].layer, ActivationLayer)
    ends_in_sigmoid = ends_in_sigmoid and tail[-1].layer.function == "sigmoid"  # type: ignore[union-attr]
    if not ends_in_sigmoid or task == "regress":
        return None, tail
    if task == "generate":
        raise CheckpointError("task generate needs a softmax over all ids, not sigmoids")
    return "sigmoid", tail[:-1]


def _selects(rows: Sequence[Rows]) -> bool:
    return any(isinstance(step.layer, SelectLayer) for step in rows)


def _named(prefix: str, rows: Sequence[Rows]) -> dict[str, Array]:
    """Return the tensors of layers in order, by their names in a model folder."""
    return {
        f"{prefix}.{i}.{name}": array
        for i, step in enumerate(rows)
        for name, array in step.tensors.items()
    }


def _float(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
