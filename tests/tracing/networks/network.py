"""A network in the tested list, and the sizes that all of them share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

WORDS, FEATURES, CLASSES = 30, 5, 3


@dataclass(frozen=True)
class Network:
    """A module to build, how it is saved, and what the folder is expected to hold.

    head: some fields of the folder's head. config: some fields of its config.
    """

    build: Callable[[], nn.Module]
    task: str = "classify"
    options: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
