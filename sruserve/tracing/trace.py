"""Run a module twice, and describe the network that it is."""

import copy
import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sruserve.model.importers.wiring.layers import Layers, Softmax
from sruserve.tracing.crf import crfs_of, without_decoding
from sruserve.tracing.errors import TracingError
from sruserve.tracing.graph import merge
from sruserve.tracing.inputs import InputKind
from sruserve.tracing.interpreter import Interpreter, is_state
from sruserve.tracing.lengths import Limits, Watch
from sruserve.tracing.recorder import Recording, Ref, evaluating, forwards_replaced
from sruserve.tracing.source import Place
from sruserve.tracing.stages import Stage, stage_of
from sruserve.tracing.values import Axes, Outputs, Pooled, Rows, Unknown

_FIRST, _SECOND = (3, 4), (7, 11)  # lengths of the input's axes in both runs


class Failed(TracingError):
    """The module raised an exception of its own."""


@dataclass(frozen=True)
class Traced:
    """A module as a network: input, recurrent modules, pooling, layers.

    rows: the module's result. outputs: of the recurrent modules. pooled: None for a row per step.
    batch_first: whether its input begins with the batch. output: which of its results it is.
    crf: the CRF that then decodes the rows. limits: numbers of steps that the module asks for.
    """

    rows: Rows
    outputs: Outputs
    pooled: Pooled | None
    batch_first: bool
    output: int | str | None
    crf: nn.Module | None
    limits: Limits

    @property
    def layers(self) -> Layers:
        """The layers after the pooling, without a softmax at their end."""
        layers = self.rows.layers
        return layers[:-1] if layers and isinstance(layers[-1], Softmax) else layers

    @property
    def softmax(self) -> Softmax | None:
        last = self.rows.layers[-1] if self.rows.layers else None
        return last if isinstance(last, Softmax) else None

    @property
    def axes(self) -> Axes:
        return self.rows.axes


def trace(module: nn.Module, kind: InputKind, output: int | str | None = None) -> Traced:
    """Describe a module that reads inputs of a kind; raise `TracingError`.

    output: which entry of a tuple or a dict that the module returns is the network's result.
    """
    if (problem := signature_problem(module)) is not None:
        raise TracingError(f"{type(module).__name__}.forward {problem}")
    stages = {each: stage for each in module.modules() if (stage := stage_of(each)) is not None}
    with evaluating(module), without_decoding(crfs_of(module)) as crfs:
        runs = [_record(module, stages, kind, i) for i in range(2)]
    (first, one), (second, two) = runs
    graph = merge(first, second, (one, two), [0])
    interpreter = Interpreter(graph, stages, _FIRST, _SECOND)
    interpreter.run()
    place = graph.operations[-1].place
    ref, output = _chosen(graph.result, output, interpreter, place)
    value = interpreter.value(ref)
    if isinstance(value, Unknown):
        raise TracingError(value.reason, value.place)
    if not isinstance(value, Rows):
        raise TracingError("the module does not return scores, but something else", place)
    origin = value.origin
    pooled = origin if isinstance(origin, Pooled) else None
    if pooled is not None and pooled.kind == "sum":
        raise TracingError("the module sums the steps: divide by their number, a mean", place)
    outputs = pooled.outputs if pooled is not None else origin
    if not isinstance(outputs, Outputs):
        raise TracingError("the result does not come from a recurrent module", place)
    if len(set(crfs)) > 1:
        raise TracingError("the module decodes with several CRFs")
    crf = crfs[0] if crfs else None
    batch_first = interpreter.batch_first
    limits, others = (run.watch.limits(int(batch_first)) for run in (first, second))
    limits = {length: place for length, place in limits.items() if length in others}
    return Traced(value, outputs, pooled, batch_first, output, crf, limits)


def _record(
    module: nn.Module, stages: Mapping[nn.Module, Stage], kind: InputKind, run: int
) -> tuple[Recording, Any]:
    x = kind.draw(_FIRST[run], _SECOND[run], seed=run)
    recording = Recording(Watch(x.shape))
    (ref,) = recording.encode((x,))
    assert ref.number == 0
    with ExitStack() as stack:
        forwards = {each: recording.module(each, each.forward) for each in stages}
        stack.enter_context(forwards_replaced(forwards))
        try:
            with recording:
                result = module(x)
        except TracingError:
            raise
        except Exception as error:
            raise _failed(error, x) from error
    return recording, recording.encode(result)


def _failed(error: Exception, x: Tensor) -> Failed:
    return Failed(
        f"the module fails on an input of shape {list(x.shape)}, {x.dtype}: "
        f"{type(error).__name__}: {str(error)[:300]}",
        _place_of(error),
    )


def _place_of(error: Exception) -> Place | None:
    """Return the last line of the user's own code in a traceback."""
    import traceback

    from sruserve.tracing.source import is_own

    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return Place(frame.filename, frame.lineno or 0, frame.line or "")
    return None


def _chosen(
    result: Any, output: int | str | None, interpreter: Interpreter, place: Place | None
) -> tuple[Ref, int | str | None]:
    """Return the tensor that is the network's result, and its index or key in what it is in."""
    if isinstance(result, Mapping):
        key = output if output is not None else ("logits" if "logits" in result else None)
        if key is None and len(result) == 1:
            key = next(iter(result))
        if key is None or key not in result:
            raise TracingError(
                f"the module returns a dict: pass output=, one of {[*result]}", place
            )
        return _tensor(result[key], place), key
    if isinstance(result, tuple):
        if output is None:
            _check_rest(result[1:], interpreter, place)
        index = 0 if output is None else output
        if not isinstance(index, int) or not -len(result) <= index < len(result):
            raise TracingError(
                f"the module returns {len(result)} values; output= is {index}", place
            )
        return _tensor(result[index], place), index
    return _tensor(result, place), None


def _check_rest(rest: Any, interpreter: Interpreter, place: Place | None) -> None:
    """Raise `TracingError` unless the values after the first are recurrent states."""
    for entry in rest:
        if isinstance(entry, tuple):
            _check_rest(entry, interpreter, place)
        elif isinstance(entry, Ref) and not is_state(interpreter.value(entry)):
            raise TracingError(
                "the module returns several values: pass output=, the index of the scores", place
            )


def _tensor(value: Any, place: Place | None) -> Ref:
    if isinstance(value, Ref):
        return value
    raise TracingError(f"the module returns {type(value).__name__}, not a tensor of scores", place)


def signature_problem(module: nn.Module) -> str | None:
    """Return why a module cannot be called with one input, as a clause; None if it can."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        return f"needs {len(needed)} inputs ({', '.join(needed)}): give all but the first a default"
    return None


def on_cpu(module: nn.Module) -> nn.Module:
    """Return the module inside its wrappers, in float32 on the CPU; copied unless it is already."""
    module = _unwrapped(module)
    tensors = [*module.parameters(), *module.buffers()]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    if all(tensor.device.type == "cpu" for tensor in tensors) and all(
        tensor.dtype == torch.float32 for tensor in floats
    ):
        return module
    try:
        return copy.deepcopy(module).float().cpu()
    except Exception as error:
        raise TracingError(
            f"the module cannot be copied to the CPU in float32 ({type(error).__name__}: "
            f"{str(error)[:200]}): call module.float().cpu() before saving it"
        ) from error


def in_float64(module: nn.Module) -> nn.Module | None:
    """Return a copy on the CPU if the module has tensors in float64, whose digits count."""
    module = _unwrapped(module)
    tensors = [*module.parameters(), *module.buffers()]
    if not any(tensor.dtype == torch.float64 for tensor in tensors):
        return None
    return copy.deepcopy(module).cpu().double()


def _unwrapped(module: nn.Module) -> nn.Module:
    for name in ("_orig_mod", "module"):
        while isinstance(inner := module._modules.get(name), nn.Module) and _wraps(module, name):
            module = inner
    return module


def _wraps(module: nn.Module, name: str) -> bool:
    if name == "_orig_mod":
        return True
    return type(module).__name__ in (
        "DataParallel",
        "DistributedDataParallel",
        "FullyShardedDataParallel",
    )
