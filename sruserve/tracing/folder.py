"""The config and the tensors of a traced network's model folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.config import LABELLED, ModelConfig, explain
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.heads.config import Scoring
from sruserve.model.importers.format import Imported, config_of
from sruserve.model.importers.two_classes import with_two_classes
from sruserve.model.importers.wiring.layers import Activation, Layer, Layers
from sruserve.model.importers.wiring.network import Network, Pooling, parts_of
from sruserve.model.names import Task
from sruserve.tracing.crf import crf_tensors
from sruserve.tracing.errors import TracingError
from sruserve.tracing.pooling import end_of_last
from sruserve.tracing.stacks import stack_of
from sruserve.tracing.trace import Traced
from sruserve.tracing.values import Lookup, Pooled


@dataclass(frozen=True)
class Written:
    """What a folder holds, and how its scores compare with the module's result.

    returned: what the module returns: "logits", "log_softmax", "softmax" or "sigmoid".
    added: whether `output` has a row of zeros before the module's one logit.
    """

    config: ModelConfig
    tensors: dict[str, Tensor]
    returned: str
    added: bool


def describe(
    traced: Traced,
    task: Task,
    labels: Sequence[str] | None,
    pooling: str | Sequence[str] | None = None,
    activation: Scoring | None = None,
    regression: Mapping[str, Any] | None = None,
    crf_window: int | None = None,
) -> Written:
    """Return the folder's content; raise `TracingError` or `OptionError` if it cannot be one.

    regression: for task regress: fields of `Regression`, of which `names` has a default.
    crf_window: for a CRF: see `HeadConfig`; None: its default.
    """
    tensors, rnn = stack_of(traced.outputs.stages)
    poolings = _poolings(traced, task)
    kinds = [each.kind for each in poolings] or ["last"]
    if pooling is not None and kinds != ([pooling] if isinstance(pooling, str) else [*pooling]):
        raise OptionError(
            f"pooling is {pooling}, but the module's is {' and '.join(kinds)}: leave it out"
        )
    if task == "encode" and (traced.layers or traced.softmax):
        raise TracingError(
            "task encode serves a recurrent stack without a head after it: choose another task"
        )
    layers, returned, scoring = _scoring(traced, task, activation)
    source = traced.outputs.source
    table = source.origin.table if isinstance(source.origin, Lookup) else None
    width = source.origin.width
    network = Network(rnn, tensors, width, table, source.layers, poolings, layers)
    try:
        parts = parts_of(network, task)
        added = _is_binary(parts, task, labels, scoring)
        if added:
            parts, scoring = with_two_classes(parts, labels), "softmax"
        if traced.crf is not None:
            parts = replace(parts, tensors=parts.tensors | crf_tensors(traced.crf))
        head: dict[str, Any] = {"crf": True} if traced.crf is not None else {}
        if crf_window is not None:
            if traced.crf is None:
                raise OptionError(
                    "crf_window is for a module that calls `decode` of a CRF: leave it out"
                )
            head["crf_window"] = crf_window
        config = _config(parts, task, labels, scoring, head, dict(regression or {}))
    except ValidationError as error:
        message = f"the module is not a network for task {task}: {explain(error)}"
        raise TracingError(message) from error
    except CheckpointError as error:
        raise TracingError(str(error)) from error
    if odd := [name for name, tensor in parts.tensors.items() if not tensor.isfinite().all()]:
        raise TracingError(f"some weights are not finite: {', '.join(odd[:4])}")
    return Written(config, parts.tensors, returned, added)


def _config(
    parts: Imported,
    task: Task,
    labels: Sequence[str] | None,
    scoring: Scoring,
    head: dict[str, Any],
    regression: dict[str, Any],
) -> ModelConfig:
    outputs = len(parts.tensors.get("output.weight", ()))
    names: dict[int, str] = {}
    values = None
    if task in LABELLED:
        head["activation"] = scoring
        names = _labels(labels, outputs)
    elif labels is not None and task != "encode":
        raise OptionError(
            f"labels is for tasks {', '.join(LABELLED)}, not for task {task}: leave it out"
        )
    if task == "regress":
        quantiles = max(1, len(regression.get("quantiles", ())))
        numbers = [str(i) for i in range(outputs // quantiles)]
        values = {"names": numbers, "steps": parts.steps} | regression
    if task == "generate" and not parts.head.tied and outputs != parts.vocab_size:
        raise TracingError(
            f"task generate needs a score for each of {parts.vocab_size} ids of the input; "
            f"the module returns {outputs}"
        )
    return config_of(parts, task, head, names, values)


def _is_binary(parts: Imported, task: Task, labels: Sequence[str] | None, scoring: Scoring) -> bool:
    """Whether the output is one logit for two classes."""
    two = task in LABELLED and labels is not None and len(labels) == 2 and scoring != "none"
    return two and len(parts.tensors["output.weight"]) == 1


def _labels(labels: Sequence[str] | None, outputs: int) -> dict[int, str]:
    names = [str(i) for i in range(outputs)] if labels is None else list(labels)
    if len(names) != outputs:
        raise OptionError(f"labels: {len(names)} names for {outputs} outputs of the module")
    return dict(enumerate(names))


def _poolings(traced: Traced, task: Task) -> tuple[Pooling, ...]:
    """Return how the steps are pooled; empty for a row for every step."""
    by_step = task in ("tag", "generate", "encode")
    if traced.pooled is None:
        if not by_step and task != "regress":
            raise TracingError(
                f"the module returns a row for every step, but task {task} needs one for an input: "
                "pool the steps in forward, or choose task tag or generate"
            )
        return ()
    poolings = _plainest(traced.pooled)
    last = [pooling.kind for pooling in poolings] == ["last"]
    if by_step and (not last or task != "generate" or traced.outputs.bidirectional):
        raise TracingError(
            f"the module returns one row for an input, but task {task} needs one for every step"
        )
    return poolings


def _plainest(pooled: Pooled) -> tuple[Pooling, ...]:
    """Return the poolings; the last output instead of an end state that is the same."""
    (first, *others) = pooled.poolings
    if not others and first.kind == "final" and first.ends == (end_of_last(pooled.outputs),):
        return (Pooling("last"),)
    return pooled.poolings


def _scoring(traced: Traced, task: Task, stated: Scoring | None) -> tuple[Layers, str, Scoring]:
    """Return the layers before the logits, what the module returns, and the folder's activation."""
    layers = traced.layers
    if task not in LABELLED:
        if stated is not None:
            raise OptionError(
                f"activation is for tasks with labels, not for task {task}: leave it out"
            )
        if traced.softmax is None:
            return layers, "logits", "softmax"
        if task == "regress":
            raise TracingError("the module's values are a softmax: task regress cannot serve it")
    own: Scoring | None = None
    returned = "logits"
    if traced.softmax is not None:
        own, returned = "softmax", "log_softmax" if traced.softmax.log else "softmax"
    elif layers and _is_sigmoid(layers[-1]) and stated != "none":
        own, returned, layers = "sigmoid", "sigmoid", layers[:-1]
    if None not in (own, stated) and own != stated:
        raise OptionError(f"activation is {stated}, but the module computes {own} itself")
    return layers, returned, own or stated or "softmax"


def _is_sigmoid(layer: Layer) -> bool:
    return isinstance(layer, Activation) and layer.function == "sigmoid"
