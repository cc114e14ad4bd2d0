"""Follow the pickle of a state dict without building it, and refuse what could not be bounded.

`torch.load(weights_only=True)` runs no code of a file, but a few hundred bytes can make it take any
memory (`bytearray(n)`) or any time (a key that is a tuple of tuples, which is hashed).
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import torch

from sruserve.model.importers.attribute_bags import BAG_NAMES

_LARGEST_KEY = 1 << 53  # a hash has 61 bits, so smaller numbers have different ones
_MAX_STEPS = 10_000_000  # a list of a million words takes three million
_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8, "QInt8": 1, "QUInt8": 1,
    "QInt32": 4, "QUInt4x2": 1, "QUInt2x4": 1,
}  # fmt: skip
_STORAGES = {f"torch {kind}Storage": size for kind, size in _BYTES.items()} | {
    "torch.storage UntypedStorage": 1
}
_REBUILD = tuple(f"torch._utils _rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
_PARAMETERS = (
    "torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state"
)  # fmt: skip
_ORDERED = "collections OrderedDict"
_SETS = ("__builtin__ set", "builtins set")
_ENCODE = "_codecs encode"  # bytes
# Small values beside the tensors: sizes, devices, complex numbers, milestones of a schedule.
_VALUES = (
    "collections Counter", "torch Size", "torch device", "__builtin__ complex", "builtins complex",
    "torch.serialization _get_layout",
)  # fmt: skip
# Objects that only have attributes, made of nothing.
_BAGS = frozenset(BAG_NAMES)
_CALLABLE = {*_REBUILD, *_PARAMETERS, _ORDERED, *_SETS, _ENCODE, *_VALUES}
_LATIN = ("latin1", "latin-1")
_TAKEN = {"BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "LONG1"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class PickleRefused(ValueError):
    """The pickle is not one of a state dict; the message names what it has."""


@dataclass(frozen=True, eq=False)
class _Global:
    name: str


@dataclass(eq=False)
class _Object:
    """What a call would return, or a dict; `size` entries would be copied with it."""

    name: str
    size: int = 0


@dataclass(frozen=True, eq=False)
class _Storage:
    nbytes: int
    item_bytes: int


class PickleScan:
    """The pickles of one file, with a bound on their steps and on the bytes of their tensors."""

    def __init__(self, file_bytes: int) -> None:
        self._steps_left = _MAX_STEPS
        self._bytes_left = file_bytes
        self._storages: set[Any] = set()
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[Any, Any] = {}
        self._steps: dict[str, Callable[[], None]] = {
            "EMPTY_LIST": lambda: self._stack.append([]),
            "EMPTY_DICT": lambda: self._stack.append(_Object("dict")),
            "MARK": self._mark,
            "TUPLE": self._tuple_of_marked,
            "TUPLE1": lambda: self._tuple(1),
            "TUPLE2": lambda: self._tuple(2),
            "TUPLE3": lambda: self._tuple(3),
            "APPEND": lambda: self._extend([self._stack.pop()]),
            "APPENDS": lambda: self._extend(self._marked()),
            "SETITEM": lambda: self._set([self._stack.pop(-2), self._stack.pop()]),
            "SETITEMS": lambda: self._set(self._marked()),
            "REDUCE": self._reduce,
            "NEWOBJ": self._new,
            "BUILD": self._build,
            "BINPERSID": self._persistent,
        }

    def read(self, file: IO[bytes]) -> Any:
        """Follow one pickle to its end and return its value; tensors are stand-ins.

        Raises `PickleRefused`, and other errors for a damaged pickle.
        """
        self._stack, self._outer, self._memo = [], [], {}
        for opcode, argument, _ in pickletools.genops(file):
            self._take(1)
            name = opcode.name
            if name in ("BINPUT", "LONG_BINPUT"):
                self._memo[argument] = self._stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                self._stack.append(self._memo[argument])
            elif name in _TAKEN:
                self._stack.append(argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name == "GLOBAL":
                self._stack.append(_known(str(argument)))
            elif step := self._steps.get(name):
                step()
            elif name not in ("PROTO", "STOP"):
                raise PickleRefused(f"the pickle's instruction {name}")
        return self._stack.pop()

    def _take(self, count: int) -> None:
        self._steps_left -= count
        if self._steps_left < 0:
            raise PickleRefused(f"a pickle of more than {_MAX_STEPS:,} steps")

    def _mark(self) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _tuple(self, count: int) -> None:
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _tuple_of_marked(self) -> None:
        items = tuple(self._marked())
        self._stack.append(items)

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise PickleRefused("a list's entries without their list")
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, _Object):
            raise PickleRefused("a dict's entries without their dict")
        for key in items[::2]:
            _check_key(key)
        target.size += len(items) // 2

    def _reduce(self) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        if not isinstance(called, _Global) or called.name not in _CALLABLE:
            _refuse(called)
        if not isinstance(arguments, tuple):
            raise PickleRefused(f"{called.name} without arguments")
        self._take(sum(map(_entries, arguments)))
        if called.name in _REBUILD:
            _check_view(*arguments[:4])
        elif called.name == _ORDERED and arguments:
            for key, _ in arguments[0]:  # as Python 2 writes it
                _check_key(key)
        elif called.name in _SETS:
            for key in arguments[0]:
                _check_key(key)
        elif called.name == _ENCODE and arguments[1] not in _LATIN:
            raise PickleRefused("a text in an encoding")
        elif called.name in _VALUES:
            for value in arguments:
                _check_value(value)
        self._stack.append(_Object(called.name))

    def _new(self) -> None:
        arguments, kind = self._stack.pop(), self._stack.pop()
        if not isinstance(kind, _Global) or kind.name not in _BAGS:
            _refuse(kind)
        if arguments != ():
            raise PickleRefused(f"{kind.name} with arguments")
        self._stack.append(_Object(kind.name))

    def _build(self) -> None:
        state, built = self._stack.pop(), self._stack[-1]
        if not isinstance(built, _Object) or built.name not in (_ORDERED, *_BAGS):
            raise PickleRefused(f"the attributes of {getattr(built, 'name', 'a value')}")
        if not isinstance(state, _Object) or state.name not in ("dict", _ORDERED):
            raise PickleRefused("attributes that are no dict")
        self._take(state.size)

    def _persistent(self) -> None:
        kind, storage, key, location, numel, *view = self._stack.pop()
        if not isinstance(storage, _Global) or storage.name not in _STORAGES:
            _refuse(storage)
        view = [part for entry in view if entry is not None for part in entry]
        _check_key(key)
        for part in (kind, location, numel, *view):
            _check_plain(part)
        item = _STORAGES[storage.name]
        if key not in self._storages:
            self._storages.add(key)
            self._bytes_left -= numel * item
        if numel < 0 or self._bytes_left < 0:
            raise PickleRefused("tensors of more bytes than the file")
        self._stack.append(_Storage(numel * item, item))


def _known(name: str) -> _Global:
    if name in _CALLABLE or name in _STORAGES or name in _BAGS:
        return _Global(name)
    module, _, attribute = name.partition(" ")
    if module == "torch" and isinstance(getattr(torch, attribute, None), torch.dtype):
        return _Global(name)
    raise PickleRefused(name.replace(" ", "."))


def _refuse(value: Any) -> NoReturn:
    name = value.name if isinstance(value, _Global) else type(value).__name__
    raise PickleRefused(f"a call or a storage of {name.replace(' ', '.')}")


def _check_key(key: Any) -> None:
    """Refuse keys of a dict or set that could all have one hash, which takes quadratic time."""
    _check_plain(key)
    if isinstance(key, int) and abs(key) >= _LARGEST_KEY:
        raise PickleRefused("a number of more than 53 bits as a key")


def _check_plain(value: Any) -> None:
    if not isinstance(value, str | bytes | int | float | None):
        raise PickleRefused("a key that is neither a text nor a number")


def _check_value(value: Any) -> None:
    """The argument of a small value: a text, a number, a list of them, or a dict."""
    if isinstance(value, list | tuple):
        for part in value:
            _check_plain(part)
    elif not isinstance(value, _Object) or value.name != "dict":
        _check_plain(value)


def _check_view(storage: Any, offset: int, sizes: Any, strides: Any) -> None:
    """Refuse a tensor beyond the end of its numbers, which would be made larger for it."""
    if not isinstance(storage, _Storage):
        raise PickleRefused("a tensor without numbers")
    for part in (offset, *sizes, *strides):
        if not isinstance(part, int) or part < 0:
            raise PickleRefused("a tensor whose shape is no list of numbers")
    if 0 in sizes:
        return
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if (last + 1) * storage.item_bytes > storage.nbytes:
        raise PickleRefused("a tensor that ends after its numbers")


def _entries(value: Any) -> int:
    """The entries of an argument, which a call may copy."""
    if isinstance(value, _Object):
        return value.size
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0
