"""Classes of checkpoints that only have attributes: they are read as plain values, without code."""

from typing import Any


def _bag(module: str, name: str) -> type:
    """Return an empty class of the name that a pickle states."""
    return type(name, (), {"__module__": module, "__qualname__": name})


# Of DrQA's files: the arguments of a training run, and the numbers of words.
BAGS = (_bag("argparse", "Namespace"), _bag("drqa.reader.data", "Dictionary"))
BAG_NAMES = tuple(f"{bag.__module__} {bag.__name__}" for bag in BAGS)


def plain(value: Any) -> Any:
    """Return the attributes of a bag as a dict; any other value as it is."""
    return dict(vars(value)) if type(value) in BAGS else value
