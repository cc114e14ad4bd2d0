"""The parameters of an inference: which sequence it goes on with, and what `/v1` calls fields."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sruserve.server.errors import InvalidRequest
from sruserve.server.kserve.messages import Parameters

PRIORITIES = 100  # Triton's levels: 1 is the highest, 0 the default
DEFAULT_PRIORITY = 50
_MOST_MICROSECONDS = 2**31 * 1000
_MOST_ID = 128  # characters
# of the request, under the names that Triton's clients let pass
_STATE_FIELDS = {
    "sru_state": "state",
    "sru_preset": "preset",
    "sru_return_state": "return_state",
}
_OURS = (*_STATE_FIELDS, "sru_step", "sequence_id", "sequence_start", "sequence_end", "priority")


@dataclass(frozen=True, slots=True)
class Sequence:
    """The place of a request in a sequence.

    step: its number, so that it may be sent again; None: the next one.
    """

    id: str
    start: bool
    end: bool
    step: int | None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What parameters ask for.

    fields: of a request under `/v1`.
    """

    fields: dict[str, Any]
    sequence: Sequence | None


def read_parameters(parameters: Parameters, options: Collection[str]) -> RequestOptions:
    """What they ask for; raises `InvalidRequest`.

    options: fields of the model's task that parameters of the same names set.
    """
    fields: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in options:
            fields[name] = value
        elif name in _STATE_FIELDS:
            fields[_STATE_FIELDS[name]] = value
        elif name == "priority":
            fields["priority"] = _priority(value)
        elif name == "timeout":
            fields["timeout_ms"] = _milliseconds(value)
        elif name not in (*_OURS, "binary_data_output") and not name.startswith("triton_"):
            known = ", ".join((*_OURS, "timeout", *options))
            raise InvalidRequest(f"unknown parameter '{name[:100]}'; known are {known}")
    return RequestOptions(fields, _sequence(parameters))


def _sequence(parameters: Parameters) -> Sequence | None:
    given = parameters.get("sequence_id", 0)
    if type(given) not in (int, str):
        raise InvalidRequest("'sequence_id' must be a number or a text", param="sequence_id")
    if isinstance(given, int) and not 0 <= given < 2**64:
        raise InvalidRequest("'sequence_id' must be from 0 to 2^64 - 1", param="sequence_id")
    if isinstance(given, str) and len(given) > _MOST_ID:
        raise InvalidRequest(
            f"'sequence_id' may have {_MOST_ID} characters at most", param="sequence_id"
        )
    start, end = (_flag(parameters, name) for name in ("sequence_start", "sequence_end"))
    step = parameters.get("sru_step")
    if step is not None and (type(step) is not int or not 0 <= step < 2**63):
        raise InvalidRequest("'sru_step' must be a number from 0", param="sru_step")
    if not given:  # 0 and "" mean that there is none
        if step is not None:
            raise InvalidRequest("'sru_step' needs a 'sequence_id'", param="sru_step")
        return None
    return Sequence(str(given), start, end, step)


def _flag(parameters: Parameters, name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{name}' must be true or false", param=name)
    return value


def _priority(value: Any) -> int:
    """Ours, of which lower ones go first and 0 is the default."""
    if type(value) is not int or not 0 <= value <= PRIORITIES:
        raise InvalidRequest(
            f"'priority' must be from 1, the highest, to {PRIORITIES}, or 0, which is the default, "
            f"{DEFAULT_PRIORITY}",
            param="priority",
        )
    return value - DEFAULT_PRIORITY if value else 0


def _milliseconds(value: Any) -> int | None:
    """Of microseconds, rounded up; 0 is no limit."""
    if type(value) is not int or not 0 <= value <= _MOST_MICROSECONDS:
        raise InvalidRequest(
            f"'timeout' must be microseconds, at most {_MOST_MICROSECONDS}; 0 is no limit",
            param="timeout",
        )
    return -(-value // 1000) or None
