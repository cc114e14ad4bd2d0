"""The config and the tensors of a traced network's model folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from sruserve.model.config import LABELLED, ModelConfig, architecture, explain
from sruserve.model.errors import OptionError
from sruserve.model.names import Task
from sruserve.tracing.crf import crf_tensors
from sruserve.tracing.errors import TracingError
from sruserve.tracing.layers import (
    Activation,
    Layer,
    Linear,
    Norm,
    Residual,
    Scale,
    Select,
    affine,
    fused,
    ranges_of,
    width_after,
)
from sruserve.tracing.pooling import atoms_of
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


@dataclass(frozen=True)
class Options:
    """What the caller of `save` states; see there."""

    task: Task
    labels: Sequence[str] | None
    pooling: str | None
    activation: str | None
    regression: dict[str, Any]


def describe(
    traced: Traced,
    task: Task,
    labels: Sequence[str] | None,
    pooling: str | None = None,
    activation: str | None = None,
    regression: Mapping[str, Any] | None = None,
) -> Written:
    """Return the folder's content; raise `TracingError` or `OptionError` if it cannot be one.

    regression: for task regress: fields of `Regression`, of which `names` has a default.
    """
    tensors, rnn = stack_of(traced.outputs.stages)
    fields: dict[str, Any] = {"task": task, "model_type": rnn.family, "rnn": rnn}
    fields["architectures"] = (architecture(rnn, task),)
    fields |= _inputs(traced, tensors)
    options = Options(task, labels, pooling, activation, dict(regression or {}))
    head, returned, added = _head(traced, options, fields, tensors)
    fields["head"] = head
    tensors = {name: tensor.detach().float().contiguous() for name, tensor in tensors.items()}
    if odd := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise TracingError(f"some weights are not finite: {', '.join(odd[:4])}")
    try:
        return Written(ModelConfig.model_validate(fields), tensors, returned, added)
    except ValidationError as error:
        message = f"the module is not a network for task {task}: {explain(error)}"
        raise TracingError(message) from error


def _inputs(traced: Traced, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the config of embedding and input layers, and add their tensors."""
    source = traced.outputs.source
    layers = fused(source.layers)
    fields: dict[str, Any] = {}
    if isinstance(source.origin, Lookup):
        tensors["embedding.weight"] = source.origin.table
        fields["vocab_size"] = len(source.origin.table)
        if layers and isinstance(first := layers[0], Scale) and _is_factor(first):
            fields["embedding"] = {"scale": float(first.weight)}
            layers = layers[1:]
    fields["input_layers"] = _layers(layers, source.origin.width, "input_layers.", tensors)
    if layers:
        fields["input_width"] = source.origin.width
    return fields


def _is_factor(layer: Scale) -> bool:
    """Whether a scale only multiplies by one positive number."""
    plain = not layer.mean.any() and not layer.bias.any()
    return plain and layer.weight.numel() == 1 and bool(layer.weight > 0)


def _head(
    traced: Traced, options: Options, fields: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], str, bool]:
    """Return the head's config, what the module returns, and whether a row of zeros was added."""
    task = options.task
    head, layers, width = _pooled(traced, task, tensors)
    if options.pooling not in (None, head["pooling"]):
        raise OptionError(f"pooling is {options.pooling}, but the module's is {head['pooling']}")
    if task == "encode":
        if layers or traced.softmax:
            raise TracingError("task encode serves a recurrent stack without a head after it")
        return {}, "logits", False
    layers, returned, scoring = _scoring(traced, options, fused(layers))
    inner, output = _split(layers, width)
    weight, bias = output.weight, output.bias
    added = False
    if task in LABELLED:
        labels = options.labels
        if len(weight) == 1 and labels is not None and len(labels) == 2 and scoring != "none":
            weight = torch.cat([torch.zeros_like(weight), weight])
            bias = None if bias is None else torch.cat([torch.zeros_like(bias), bias])
            scoring, added = "softmax", True
        fields["id2label"] = _labels(labels, len(weight))
        head["activation"] = scoring
    elif options.labels is not None:
        raise OptionError(f"labels is for tasks {', '.join(LABELLED)}, not for task {task}")
    if task == "regress":
        steps = "every" if traced.pooled is None else "last"
        quantiles = max(1, len(options.regression.get("quantiles", ())))
        names = [str(i) for i in range(len(weight) // quantiles)]
        fields["regression"] = {"names": names, "steps": steps} | options.regression
    if task == "generate" and len(weight) != fields.get("vocab_size"):
        raise TracingError(
            f"task generate needs a score for each of {fields.get('vocab_size')} ids of the input; "
            f"the module returns {len(weight)}"
        )
    if traced.crf is not None:
        head["crf"] = True
        tensors.update(crf_tensors(traced.crf))
    head["layers"] = _layers(inner, width, "head.", tensors)
    table = tensors.get("embedding.weight")
    tied = task == "generate" and table is not None and torch.equal(table, weight)
    if not tied:
        tensors["output.weight"] = weight
    if bias is not None:
        tensors["output.bias"] = bias
    return head | {"tied": tied, "bias": bias is not None}, returned, added


def _labels(labels: Sequence[str] | None, outputs: int) -> dict[int, str]:
    names = [str(i) for i in range(outputs)] if labels is None else list(labels)
    if len(names) != outputs:
        raise OptionError(f"labels: {len(names)} names for {outputs} outputs of the module")
    return dict(enumerate(names))


def _pooled(
    traced: Traced, task: Task, tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], tuple[Layer, ...], int]:
    """Return the config of the pooling, the layers after it and the width of the pooled row."""
    pooled, layers = traced.pooled, traced.layers
    width = traced.outputs.width
    by_step = task in ("tag", "generate", "encode")
    if pooled is None:
        if not by_step and task != "regress":
            raise TracingError(
                f"the module returns a row for every step, but task {task} needs one for an input: "
                "pool the steps in forward, or choose task tag or generate"
            )
        return {"pooling": "last"}, layers, width
    pooled = _plainest(pooled)
    if by_step and (pooled.kind != "last" or task != "generate" or traced.outputs.bidirectional):
        raise TracingError(
            f"the module returns one row for an input, but task {task} needs one for every step"
        )
    head: dict[str, Any] = {"pooling": pooled.kind}
    if pooled.kind == "attention":
        head["attention"] = _layers(fused(pooled.attention), width, "pool.", tensors)
    if pooled.kind == "final":
        names, numbers, width = _final(pooled)
        head["final"] = names
        if numbers != list(range(width)):
            layers = (Select(ranges_of(numbers)), *layers)
    return head, layers, width


def _plainest(pooled: Pooled) -> Pooled:
    """Return the last output instead of an end state that is the same."""
    last = replace(pooled, kind="last", atoms=())
    stage = pooled.outputs.stages[-1]
    if pooled.kind == "final" and stage.kinds[0][0] == "h" and not pooled.outputs.bidirectional:
        return last if pooled.atoms == atoms_of(last) else pooled
    return pooled


def _final(pooled: Pooled) -> tuple[list[str], list[int], int]:
    """Return the entries of the end state, the columns of them that are pooled, and their width."""
    widths: dict[str, int] = {}
    for atom in pooled.atoms:
        both = 1 if atom.direction is None else pooled.outputs.stages[-1].directions
        widths[f"{atom.layer}.{atom.kind}"] = atom.width * both
    starts: dict[str, int] = {}
    total = 0
    for name, width in widths.items():
        starts[name] = total
        total += width
    numbers: list[int] = []
    for atom in pooled.atoms:
        begin = starts[f"{atom.layer}.{atom.kind}"] + atom.width * (atom.direction or 0)
        numbers += range(begin, begin + atom.width)
    return list(widths), numbers, total


def _scoring(
    traced: Traced, options: Options, layers: tuple[Layer, ...]
) -> tuple[tuple[Layer, ...], str, str]:
    """Return the layers before the logits, what the module returns, and the folder's activation."""
    last, stated = (layers[-1] if layers else None), options.activation
    if options.task not in LABELLED:
        if stated is not None:
            raise OptionError(f"activation is for tasks with labels, not for task {options.task}")
        if traced.softmax is None:
            return layers, "logits", "softmax"
        if options.task == "regress":
            raise TracingError("the module's values are a softmax: task regress cannot serve it")
    own = None
    if traced.softmax is not None:
        own, returned = "softmax", "log_softmax" if traced.softmax.log else "softmax"
    elif isinstance(last, Activation) and last.function == "sigmoid" and stated != "none":
        own = returned = "sigmoid"
        layers = layers[:-1]
    else:
        returned = "logits"
    if None not in (own, stated) and own != stated:
        raise OptionError(f"activation is {stated}, but the module computes {own} itself")
    return layers, returned, own or stated or "softmax"


def _split(layers: tuple[Layer, ...], width: int) -> tuple[tuple[Layer, ...], Linear]:
    """Return the layers before the last linear one, and that; affine layers after it are folded."""
    end = len(layers)
    while end and isinstance(layers[end - 1], Scale | Select):
        end -= 1
    if end and isinstance(output := layers[end - 1], Linear):
        before = width_after(layers[: end - 1], width)
        if end == len(layers):
            return layers[:-1], output
        folded = affine(layers[end - 1 :], before)
        assert folded is not None
        return layers[: end - 1], Linear(folded[0].float(), folded[1].float())
    return layers, Linear(torch.eye(width_after(layers, width)))


def _layers(
    layers: Sequence[Layer], width: int, prefix: str, tensors: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """Return the config of layers over rows of `width`, and add their tensors."""
    config: list[dict[str, Any]] = []
    for i, layer in enumerate(layers):
        name = f"{prefix}{i}."
        if isinstance(layer, Linear):
            tensors[f"{name}weight"] = layer.weight
            if layer.bias is not None:
                tensors[f"{name}bias"] = layer.bias
            size = len(layer.weight)
            config.append({"type": "linear", "size": size, "bias": layer.bias is not None})
        elif isinstance(layer, Norm):
            tensors |= {f"{name}weight": layer.weight, f"{name}bias": layer.bias}
            config.append({"type": "layer_norm", "eps": layer.eps})
        elif isinstance(layer, Scale):
            for part in ("mean", "weight", "bias"):
                tensors[name + part] = getattr(layer, part).expand(width).float()
            config.append({"type": "scale"})
        elif isinstance(layer, Activation):
            slope = {} if layer.slope is None else {"slope": layer.slope}
            config.append({"type": "activation", "function": layer.function} | slope)
        elif isinstance(layer, Residual):
            inner = _layers(fused(layer.layers), width, name, tensors)
            config.append({"type": "residual", "layers": inner})
        elif isinstance(layer, Select):
            config.append({"type": "select", "ranges": layer.ranges})
        else:
            raise TracingError("a softmax must be the last operation of the network")
        width = width_after([layer], width)
    return config
