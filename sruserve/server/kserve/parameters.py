"""The parameters of an inference: its place in a sequence, and fields of a `/v1` request."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.messages import Parameters

PRIORITIES = 100  # Triton's levels: 1 is the highest, 0 the default
DEFAULT_PRIORITY = 50
_MAX_MICROSECONDS = 2**31 * 1000
_MAX_ID = 128  # characters
# fields of the request, with the parameter names that Triton's clients allow
STATE_FIELDS = {
    "sru_state": "state",
    "sru_preset": "preset",
    "sru_return_state": "return_state",
}
_OF_STATES = (*STATE_FIELDS, "sru_step", "sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True, slots=True)
class Sequence:
    """The place of a request in a sequence.

    step: its number, which allows a retry; None: the next one.
    """

    id: str
    start: bool
    end: bool
    step: int | None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options in parameters.

    fields: of a request under `/v1`.
    """

    fields: dict[str, Any]
    sequence: Sequence | None


def read_parameters(
    parameters: Parameters, options: Collection[str], *, has_states: bool
) -> RequestOptions:
    """Read the options; raises `InvalidRequest`.

    options: fields of the model's task that parameters with the same names set.
    has_states: whether the model has states that a request can begin from.
    """
    fields: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in options:
            fields[name] = value
        elif name in STATE_FIELDS:
            fields[STATE_FIELDS[name]] = value
        elif name == "priority":
            fields["priority"] = _priority(value)
        elif name == "timeout":
            fields["timeout_ms"] = _milliseconds(value)
        elif name not in (*_OF_STATES, "binary_data_output") and not name.startswith("triton_"):
            of_states = _OF_STATES if has_states else ()
            known = ", ".join((*of_states, "priority", "timeout", *options))
            raise InvalidRequest(f"unknown parameter '{name[:100]}'; use one of: {known}")
    return RequestOptions(fields, read_sequence(parameters))


def read_sequence(parameters: Parameters) -> Sequence | None:
    """The place of a request in a sequence, if it has one; raises `InvalidRequest`."""
    sequence_id = parameters.get("sequence_id", 0)
    if type(sequence_id) not in (int, str):
        raise InvalidRequest("'sequence_id' must be a number or a text", param="sequence_id")
    if isinstance(sequence_id, int) and not 0 <= sequence_id < 2**64:
        raise InvalidRequest("'sequence_id' must be from 0 to 2^64 - 1", param="sequence_id")
    if isinstance(sequence_id, str) and len(sequence_id) > _MAX_ID:
        raise InvalidRequest(
            f"'sequence_id' may have {_MAX_ID} characters at most", param="sequence_id"
        )
    start, end = (_flag(parameters, name) for name in ("sequence_start", "sequence_end"))
    step = parameters.get("sru_step")
    if step is not None and (type(step) is not int or not 0 <= step < 2**63):
        raise InvalidRequest("'sru_step' must be a number from 0", param="sru_step")
    if not sequence_id:  # 0 and "" mean that there is none
        if step is not None:
            raise InvalidRequest("'sru_step' needs a 'sequence_id'", param="sru_step")
        return None
    return Sequence(str(sequence_id), start, end, step)


def _flag(parameters: Parameters, name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{name}' must be true or false", param=name)
    return value


def _priority(value: Any) -> int:
    """The priority under `/v1`, where lower numbers go first and 0 is the default."""
    if type(value) is not int or not 0 <= value <= PRIORITIES:
        raise InvalidRequest(
            f"'priority' must be from 1, the highest, to {PRIORITIES}, or 0, which is the default, "
            f"{DEFAULT_PRIORITY}",
            param="priority",
        )
    return value - DEFAULT_PRIORITY if value else 0


def _milliseconds(value: Any) -> int | None:
    """A timeout in microseconds as milliseconds, rounded up; 0: no limit."""
    if type(value) is not int or not 0 <= value <= _MAX_MICROSECONDS:
        raise InvalidRequest(
            f"'timeout' must be microseconds, at most {_MAX_MICROSECONDS}; 0 is no limit",
            param="timeout",
        )
    return -(-value // 1000) or None
