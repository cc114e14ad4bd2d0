"""The inputs of a request: one or many, how many, how long, and what they go on from."""

from collections.abc import Sequence
from typing import Any

from sruserve.server.engine.job import Snapshot
from sruserve.server.errors import (
    EmptyInput,
    InputTooLong,
)
from sruserve.server.offload import LONG_BYTES
from sruserve.server.repository.served_model import LONG_CHARACTERS as LONG_CHARACTERS
from sruserve.server.seeds import new_seed
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import Input, State

INPUT_CHARACTERS = 64  # however short an input is, it takes as long as about so many characters
MANY_STATES = 16  # the same for sealing and opening states
SEEDS = 1 << 64


def split_inputs(given: Input, limits: InputLimits, field: str) -> Sequence[str | list[int]]:
    """The texts, or the lists of ids, of a request: one or many."""
    many: Sequence[Any] = given
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        many = [given]
    if not many:
        raise EmptyInput(f"'{field}' is an empty list; send at least one text", param=field)
    check_inputs(len(many), limits, field)
    for one in many:
        if 4 * len(one) > limits.input_bytes:  # no character has more than four bytes
            _check_length(one, limits.input_bytes, field)
    return many


def check_inputs(count: int, limits: InputLimits, field: str) -> None:
    """Raise `InputTooLong` if there are more inputs than one request may have."""
    if count > limits.inputs:
        raise InputTooLong(
            f"'{field}' has {count} entries and may have {limits.inputs}; send several requests, "
            "or ask the operator to raise SRUSERVE_MAX_INPUTS",
            param=field,
        )


def opens_long(state: State | None) -> bool:
    """Whether opening the states would hold up the event loop."""
    if state is None or isinstance(state, str):
        return len(state or "") > LONG_BYTES
    return len(state) > MANY_STATES or sum(len(one or "") for one in state) > LONG_BYTES


def sampler_key(start: Snapshot | None, seed: int | None = None) -> tuple[int, int]:
    """The seed and the choice of a stream: those asked for, those it began with, or new ones."""
    if seed is not None:
        return seed % SEEDS, 0
    if start is not None:
        return start.seed, start.choice
    return new_seed(), 0


def _check_length(given: str | list[int], limit: int, field: str) -> None:
    size = len(given.encode()) if isinstance(given, str) else len(given)
    if size > limit:
        unit = "bytes" if isinstance(given, str) else "token ids"
        raise InputTooLong(
            f"an entry of '{field}' has {size} {unit} and may have {limit}; send it in chunks with "
            "`state`, or ask the operator to raise SRUSERVE_MAX_INPUT_BYTES",
            param=field,
        )
