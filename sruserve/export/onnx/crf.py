"""The best path through a CRF, as nodes: the labels of whole sequences."""

from collections.abc import Mapping

from torch import Tensor

from sruserve.export.onnx.graph import FLOAT, INT, Graph, Op, Value
from sruserve.export.onnx.steps import WholeSequences


def add_best_path(
    graph: Graph, tensors: Mapping[str, Tensor], scores: Value, steps: WholeSequences
) -> Value:
    """Return the labels of the best path, (time, batch), int64, of scores (rows, labels).

    Labels after a sequence's last step have no meaning. See `LinearChain.decode`.
    """
    op, scores = graph.op, steps.with_time(scores)
    start, end, transitions = (
        graph.weight(f"crf.{name}", tensors[f"crf.{name}"].float())
        for name in ("start_transitions", "end_transitions", "transitions")
    )
    labels = len(tensors["crf.start_transitions"])
    own = graph.weight("crf.labels", tensors["crf.start_transitions"].new_tensor(range(labels)))
    first = op.Add(op.Squeeze(op.Slice(scores, [0], [1], [0]), [0]), start)
    # One more step, outside of all sequences, because no runtime scans nothing.
    later = op.Concat(*(op.Slice(scores, [a], [b], [0]) for a, b in ((1, 2**62), (0, 1))), axis=0)
    runs = op.Cast(steps.inside(), to=FLOAT)
    ending = op.Mul(op.Slice(runs, [0], [1], [0]), 0.0)
    inside = op.Concat(op.Slice(runs, [1], [2**62], [0]), ending, axis=0)

    def forward(op: Op, best: Value, _: Value, emission: Value, runs: Value) -> list[Value]:
        paths = op.Add(op.Add(op.Unsqueeze(best, [2]), transitions), op.Unsqueeze(emission, [1]))
        source = op.Cast(op.ArgMax(paths, axis=1, keepdims=0), to=FLOAT)
        reached = op.ReduceMax(paths, [1], keepdims=0)
        running = op.Greater(runs, 0.0)
        return [op.Where(running, reached, best), op.Where(running, source, own)]

    nowhere = op.Mul(first, 0.0)
    bests, sources = graph.scan(forward, [first, nowhere], [later, inside])
    best = op.Squeeze(op.Slice(bests, [-1], [2**62], [0]), [0])
    last = op.Cast(op.ArgMax(op.Add(best, end), axis=-1, keepdims=1), to=FLOAT)

    def backward(op: Op, label: Value, source: Value) -> list[Value]:
        return [op.GatherElements(source, op.Cast(label, to=INT), axis=-1)]

    reverse = op.Slice(sources, [-1], [-(2**62)], [0], [-1])
    (path,) = graph.scan(backward, [last], [reverse])
    path = op.Slice(path, [-1], [-(2**62)], [0], [-1])
    return op.Cast(op.Squeeze(path, [2]), to=INT)
