"""The parts of a model folder from a chain of steps, for a task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from sruserve.model.config import explain
from sruserve.model.errors import CheckpointError
from sruserve.model.heads.config import Scoring
from sruserve.model.importers.format import Imported
from sruserve.model.importers.wiring.layers import Activation, Layer, Linear, Select, commutes
from sruserve.model.importers.wiring.network import Network, Pooling, parts_of
from sruserve.model.importers.wiring.stack import BuiltStack, build_stack
from sruserve.model.importers.wiring.steps import (
    Embed,
    Pool,
    Recurrent,
    Rows,
    Softmax,
    Step,
    tensor,
)
from sruserve.model.names import Task

_WITHOUT = "change the network and save it again"


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
    _check_task(task, chain, stack)
    scoring, layers = _scoring(task, [step.layer for step in chain.rows], chain.softmax)
    poolings = () if chain.pool is None else chain.pool.poolings
    if stack.padded and any(not pooling.ends for pooling in poolings or (Pooling("last"),)):
        layers = [Select(_own_columns(poolings, stack)), *layers]
    network = Network(
        rnn=stack.config,
        stack=stack.tensors,
        width=_input_width(chain, stack, features),
        table=None if chain.embedding is None else tensor(chain.embedding.table),
        inputs=tuple(step.layer for step in chain.inputs),
        pooling=poolings,
        layers=tuple(layers),
    )
    parts = parts_of(network, task)
    if scoring is None:
        return parts
    return replace(parts, head=parts.head.model_copy(update={"activation": scoring}))


def _split(steps: Sequence[Step]) -> _Chain:
    """Sort the steps by their places."""
    rest = list(steps)
    embedding = rest.pop(0) if rest and isinstance(rest[0], Embed) else None
    places = [i for i, step in enumerate(rest) if isinstance(step, Recurrent)]
    if not places:
        raise CheckpointError(
            "the file has no LSTM, GRU or RNN layer, so it cannot be served: "
            "import a recurrent network"
        )
    softmax = isinstance(rest[-1], Softmax)
    after = rest[places[-1] + 1 : len(rest) - softmax]
    pools = [step for step in after if isinstance(step, Pool)]
    allowed = {id(step) for step in (*pools[:1], *rest[len(rest) - softmax :])}
    for step in rest:
        if not isinstance(step, (Rows, Recurrent)) and id(step) not in allowed:
            raise CheckpointError(
                f"{step.name} ({type(step).__name__.lower()}) cannot be there: {_WITHOUT}"
            )
    inputs = [step for step in rest[: places[0]] if isinstance(step, Rows)]
    inner = rest[places[0] : places[-1] + 1]
    pool = pools[0] if pools else None
    before = after[: after.index(pool)] if pool is not None else []
    for step in before:
        assert isinstance(step, Rows)
        assert pool is not None
        for pooling in pool.poolings:
            if not commutes(step.layer, pooling.kind):
                raise CheckpointError(
                    f"{step.name} ({step.layer.type}) is between the recurrent layers and "
                    f"{pool.name} ({pooling.kind} of all steps); only pooling of the recurrent "
                    f"layers' own outputs can be served: {_WITHOUT}"
                )
    return _Chain(
        embedding if isinstance(embedding, Embed) else None,
        inputs,
        [step for step in inner if isinstance(step, (Rows, Recurrent))],
        pool,
        [step for step in after if isinstance(step, Rows)],
        softmax,
    )


def _own_columns(poolings: Sequence[Pooling], stack: BuiltStack) -> tuple[tuple[int, int], ...]:
    """Return the columns of the pooled rows that the file has, without the zeros beside them."""
    ranges = []
    begin = 0
    for pooling in poolings or (Pooling("last"),):
        own = sum(end.width for end in pooling.ends) or stack.width
        ranges.append((begin, begin + own))
        begin += own if pooling.ends else stack.config.output_size
    return tuple(ranges)


def _check_task(task: Task, chain: _Chain, stack: BuiltStack) -> None:
    """Raise `CheckpointError` unless the network's answer is one of the task."""
    if task == "pair":
        raise CheckpointError(
            "the file describes a network of one input: import a state dict for --task pair"
        )
    if task == "encode" and (chain.pool or chain.rows or chain.softmax or stack.padded):
        raise CheckpointError(
            "--task encode returns the outputs of a bare stack at every step, but the file has "
            "layers after the recurrent ones: import it with --task classify, tag or regress"
        )
    if task == "generate" and chain.embedding is None:
        raise CheckpointError(
            "task generate needs an embedding, and the file has none: choose another --task"
        )
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
    linear = (step.layer for step in chain.inputs if isinstance(step.layer, Linear))
    first = next(linear, None)
    return stack.config.input_size if first is None else first.weight.shape[1]


def _scoring(task: Task, layers: list[Layer], softmax: bool) -> tuple[Scoring | None, list[Layer]]:
    """Return what turns scores into the answers, None if the file does not say, and the rest."""
    if softmax:
        if task == "regress":
            raise CheckpointError(
                "the network ends in a softmax, which gives probabilities of classes: import it "
                "with --task classify or tag"
            )
        return (None if task == "generate" else "softmax"), layers
    last = layers[-1] if layers else None
    if not isinstance(last, Activation) or last.function != "sigmoid" or task == "regress":
        return None, layers
    if task == "generate":
        raise CheckpointError(
            "task generate needs a softmax over all ids, not sigmoids: save the network with one"
        )
    return "sigmoid", layers[:-1]
