"""Run a module once and record every operation on tensors, with its line of source.

Each operation is caught where torch dispatches its functions, so any Python code around them may
run: branches on shapes, loops, helpers. Recurrent modules are recorded as one operation each.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode, resolve_name

from sruserve.tracing.lengths import Length, Watch
from sruserve.tracing.source import Place, running_line

# Functions by which numbers of a tensor reach Python, so that code may depend on them. Some have
# results whose sizes depend on them.
_READS = {
    "__array__",
    "__bool__",
    "__complex__",
    "__contains__",
    "__dlpack__",
    "__float__",
    "__format__",
    "__index__",
    "__int__",
    "_typed_storage",
    "allclose",
    "argwhere",
    "data_ptr",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "numpy",
    "storage",
    "tolist",
    "unique",
    "unique_consecutive",
    "untyped_storage",
}
_SIZES = ("size", "shape")


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of a recording, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A `PackedSequence` among an operation's arguments."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of a function of torch, or of a recurrent module.

    name: such as "linear" or "add", without a trailing underscore. title: for messages.
    module: the recurrent module. args, kwargs: with a `Ref` in place of each tensor.
    outputs: the numbers of the tensors in its result, in order.
    reads: whether numbers of a tensor reach Python.
    """

    name: str
    title: str
    module: nn.Module | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[int, ...]
    reads: bool
    place: Place | None


class Recording(TorchFunctionMode):
    """The operations of one run, in order.

    tensors: every tensor by its number; those that no operation made are from outside.
    watch: notices what the input's sizes are compared with.
    """

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.operations: list[Operation] = []
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # `tensors` keeps each alive, so ids stay distinct
        self._paused = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        encoded = self.encode(args), self.encode(dict(kwargs))
        result = func(*args, **kwargs)
        name = _name(func)
        if name in _SIZES:
            return self.watch.seen(result)
        self._add(name, resolve_name(func) or name, None, encoded, result, args)
        return result

    def encode(self, value: Any) -> Any:
        """Return a value with a `Ref` in place of each tensor."""
        if isinstance(value, Tensor):
            number = self._numbers.get(id(value))
            return Ref(self._number(value) if number is None else number)
        if isinstance(value, PackedSequence):
            return Packed()
        if isinstance(value, slice):
            return slice(*map(self.encode, (value.start, value.stop, value.step)))
        if isinstance(value, tuple | list):
            return tuple(map(self.encode, value))
        if isinstance(value, Mapping):
            return {key: self.encode(entry) for key, entry in value.items()}
        return int(value) if isinstance(value, Length) else value

    def module(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the `forward` of a module, recorded as one operation."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._paused:
                return forward(*args, **kwargs)
            encoded = self.encode(args), self.encode(kwargs)
            self._paused += 1
            self.watch.pausing = True
            try:
                result = forward(*args, **kwargs)
            finally:
                self._paused -= 1
                self.watch.pausing = False
            name = type(module).__name__
            self._add("module", name, module, encoded, result, ())
            return result

        return recorded

    def _add(
        self,
        name: str,
        title: str,
        module: nn.Module | None,
        encoded: tuple[Any, Any],
        result: Any,
        args: Sequence[Any],
    ) -> None:
        reads = name in _READS
        made = _tensors(result)
        if name == "__setitem__":
            made = [args[0]]
        if made or reads:
            outputs = tuple(self._number(tensor) for tensor in made)
            place = running_line()
            self.operations.append(Operation(name, title, module, *encoded, outputs, reads, place))

    def _number(self, tensor: Tensor) -> int:
        """Give a tensor a new number: what changed in place is another value."""
        self.tensors.append(tensor)
        self._numbers[id(tensor)] = len(self.tensors) - 1
        return len(self.tensors) - 1


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    if name == "__get__":  # of a property, such as `x.T`
        name = str(getattr(func.__self__, "__name__", name))
    return name if name.startswith("__") else name.removesuffix("_")


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for entry in value for tensor in _tensors(entry)]
    return []


@contextmanager
def forwards_replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Give modules another `forward` for a while."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


def _uncompiled() -> AbstractContextManager[Any]:
    """Ignore `torch.compile`, if anything is compiled: importing the compiler takes seconds."""
    if "torch._dynamo" in sys.modules:
        return cast("AbstractContextManager[Any]", torch.compiler.set_stance("force_eager"))
    return nullcontext()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set a module to evaluation, without gradients and without compilation, for a while."""
    modes = {each: each.training for each in module.modules()}
    try:
        module.eval()
        with torch.no_grad(), _uncompiled():
            yield
    finally:
        for each, mode in modes.items():
            each.training = mode
