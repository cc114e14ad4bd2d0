"""The inputs of a request: split them, check their number and length, and choose their seeds."""

from collections.abc import Sequence
from typing import Any

from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    EmptyInput,
    InputTooLong,
)
from sruserve.server.offload import LONG_BYTES, MAX_INLINE_STATES
from sruserve.server.seeds import new_seed
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import Input, State

INPUT_CHARACTERS = 64  # a short input takes about as long as this number of characters
SEEDS = 1 << 64


def split_inputs(
    value: Input, limits: InputLimits, field: str, advice: str = "send parts of it"
) -> Sequence[str | list[int]]:
    """The inputs of a request as a sequence of texts or lists of ids.

    advice: how to send an input that is too long.
    """
    inputs: Sequence[Any] = value
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        inputs = [value]
    if not inputs:
        raise EmptyInput(f"'{field}' is an empty list; send at least one text", param=field)
    check_inputs(len(inputs), limits, field)
    if 4 * max(map(len, inputs)) > limits.input_bytes:  # a character has at most four bytes
        for content in inputs:
            _check_length(content, limits.input_bytes, field, advice)
    return inputs


def check_inputs(count: int, limits: InputLimits, field: str) -> None:
    """Raise `InputTooLong` if a request has too many inputs."""
    if count > limits.inputs:
        raise InputTooLong(
            f"'{field}' has {count} entries and may have {limits.inputs}; send several requests, "
            "or ask the operator to raise SRUSERVE_MAX_INPUTS",
            param=field,
        )


def opens_long(state: State | None) -> bool:
    """Whether opening the states would block the event loop."""
    if state is None or isinstance(state, str):
        return len(state or "") > LONG_BYTES
    return len(state) > MAX_INLINE_STATES or sum(len(token or "") for token in state) > LONG_BYTES


def sampler_key(start: Snapshot | None, seed: int | None = None) -> tuple[int, int]:
    """The seed and the choice of a stream: the requested ones, its own, or new ones."""
    if seed is not None:
        return seed % SEEDS, 0
    if start is not None:
        return start.seed, start.choice
    return new_seed(), 0


def _check_length(content: str | list[int], limit: int, field: str, advice: str) -> None:
    size = len(content.encode()) if isinstance(content, str) else len(content)
    if size > limit:
        unit = "bytes" if isinstance(content, str) else "token ids"
        raise InputTooLong(
            f"an entry of '{field}' has {size} {unit} and may have {limit}; {advice}, or ask the "
            "operator to raise SRUSERVE_MAX_INPUT_BYTES",
            param=field,
        )
