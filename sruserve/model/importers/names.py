"""The names of a checkpoint's tensors: prefixes of wrappers, and renames of `--rename`."""

import re
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError

_SHOWN = 12  # tensors in a message
_COMPILED = "_orig_mod"  # torch.compile's, around any module
_WRAPPERS = ("model", "module", "net", "network")
# A first component that says what the tensors are; one of any other name may be an attribute's.
_TELLING = re.compile(
    r"rnn_lst|ln_lst|rnns|layers|linear|cell_[0-9]+|doc_rnn|question_rnn|transform_module|conv[^.]*"
)


def listed(tensors: Mapping[str, Tensor]) -> str:
    """Return the tensors' names with their shapes, at most `_SHOWN` of them."""
    shown = [f"{short(name)} {list(t.shape)}" for name, t in list(tensors.items())[:_SHOWN]]
    more = [f"and {len(tensors) - _SHOWN} more"] if len(tensors) > _SHOWN else []
    return ", ".join(shown + more)


def wrong_format(missing: str, source: str, tensors: Mapping[str, Tensor]) -> CheckpointError:
    """Return the error for a checkpoint without the tensors by which its format is known."""
    return CheckpointError(
        f"no {missing} tensors: this is not a checkpoint of {source}, but holds {listed(tensors)}; "
        "choose another --format, or leave it out"
    )


def short(name: str) -> str:
    """Return a tensor's name short enough for a message."""
    return name if len(name) <= 60 else name[:59] + "…"


def renamed(tensors: Mapping[str, Tensor], renames: Sequence[str]) -> dict[str, Tensor]:
    """Remove the prefixes of wrappers, then rename tensors, or beginnings of names up to a dot.

    Removes torch.compile's `_orig_mod.`, and prefixes that all names share: DataParallel adds
    `module.`, Lightning and many scripts `model.`. One that says what the tensors are stays.

    renames: OLD=NEW, in order. OLD is a name as in the file, or without these prefixes.

    Raises `OptionError` for a rename that fits no tensor, or that gives two tensors one name.
    """
    own, prefix = _unwrapped(tensors)
    for rename in renames:
        old, new = _pair(rename)
        inner = _plain(f"{old}.").removeprefix(prefix).rstrip(".")
        if not _rename(own, old, new) and not (inner and _rename(own, inner, new)):
            raise OptionError(
                f"--rename {short(old)}=…: no tensor has this name or prefix; the checkpoint holds "
                f"{listed(own)}"
            )
    return own


def _unwrapped(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors without the prefixes of wrappers, and the prefix that all names shared."""
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (plain := _plain(name)) in own:
            raise CheckpointError(
                f"{short(name)} and {short(plain)} are one name; keep one of them"
            )
        own[plain] = tensor
    shared = ""
    while prefix := _shared_prefix(own):
        shared += prefix
        own = {name.removeprefix(prefix): tensor for name, tensor in own.items()}
    return own, shared


def _pair(rename: str) -> tuple[str, str]:
    old, separator, new = rename.partition("=")
    if not separator or not old.strip("."):
        raise OptionError(f"--rename {short(rename)} must be OLD=NEW, two names or two prefixes")
    return old.rstrip("."), new.rstrip(".")


def _rename(tensors: dict[str, Tensor], old: str, new: str) -> bool:
    """Replace a name, or the beginning of names; returns whether any tensor has it."""
    names = [name for name in tensors if name == old or name.startswith(f"{old}.")]
    for name in names:
        target = (new + name[len(old) :]).lstrip(".")
        if not target or (target in tensors and target not in names):
            problem = f"{short(target)} exists already" if target else "the new name is missing"
            raise OptionError(f"--rename {short(old)}={short(new)}: {problem}")
    moved = {(new + name[len(old) :]).lstrip("."): tensors.pop(name) for name in names}
    tensors |= moved
    return bool(names)


def _shared_prefix(names: Collection[str]) -> str:
    """Return the first component of all names, with its dot, if it is that of a wrapper.

    It is not if it says what the tensors are, or names the only module: `dense.weight`.
    """
    first, dot, _ = next(iter(names), "").partition(".")
    prefix = first + dot
    if not dot or not all(name.startswith(prefix) and name != prefix for name in names):
        return ""
    has_modules = any("." in name.removeprefix(prefix) for name in names)
    is_wrapper = first in _WRAPPERS or (has_modules and not _TELLING.fullmatch(first))
    return prefix if is_wrapper else ""


def _plain(name: str) -> str:
    return name.replace(f"{_COMPILED}.", "")
