"""Read the API keys of a setting or a file, and explain the wrong ones."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from sruserve.model.files import read_regular
from sruserve.model.json_names import RepeatedName, load_json

DEFAULT_TENANT = "default"  # the tenant of keys in a list without a name
_MAX_FILE_BYTES = 16 << 20
_NO_LIST = 'should be a JSON list such as [{"tenant": "acme", "key": "…"}]'

_Rate = Annotated[float, Field(ge=1e-3, le=1e12, allow_inf_nan=False)]


class KeyEntry(BaseModel):
    """One API key, and the limits of its tenant in one worker.

    An unset rate is unlimited; an unset `state_bytes` is SRUSERVE_TENANT_STREAM_BYTES.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[str, Field(min_length=8, max_length=512, pattern=r"^[!-~]+$")]
    tenant: Annotated[str, Field(min_length=1, max_length=100)] = DEFAULT_TENANT
    requests_per_second: _Rate | None = None
    steps_per_second: _Rate | None = None
    state_bytes: PositiveInt | None = None
    priority: int = Field(
        0, ge=-1000, le=1000, description="No request of this key goes sooner than this."
    )


def read_keys(listed: str | None, file: Path | None) -> list[KeyEntry]:
    """The keys in a setting and in a file; raises `ValueError`, whose message never contains a key.

    listed: a JSON list of entries, or `tenant:key` or bare keys with commas between them.
    file: contains such a JSON list.
    """
    entries = []
    if listed is not None:
        entries += _entries(listed) if listed.lstrip().startswith(("[", "{")) else _short(listed)
    if file is not None:
        try:
            entries += _entries(read_regular(file, _MAX_FILE_BYTES).decode())
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError("should be text in UTF-8") from None
    keys = [entry.key for entry in entries]
    if len(set(keys)) < len(keys):
        raise ValueError("a key is listed twice; every key belongs to one tenant")
    return entries


_LIST: TypeAdapter[list[KeyEntry]] = TypeAdapter(list[KeyEntry])


def _entries(text: str) -> list[KeyEntry]:
    try:
        entries = _LIST.validate_python(load_json(text))
    except ValidationError as error:
        raise ValueError(_explain(error)) from None
    except RepeatedName as repeated:  # either of both may be meant
        raise ValueError(
            f"an entry has {_named(repeated.name)} twice; remove one of them"
        ) from None
    except (ValueError, RecursionError):
        raise ValueError(_NO_LIST) from None
    if not entries:
        raise ValueError("lists no key; to serve every client without a key, leave the setting out")
    return entries


def _short(text: str) -> list[KeyEntry]:
    entries = []
    for number, part in enumerate(text.split(",")):
        tenant, _, key = part.strip().rpartition(":")
        if ":" in tenant:
            raise ValueError("a key that contains a colon needs the JSON form")
        fields: dict[str, Any] = {"key": key, "tenant": tenant or DEFAULT_TENANT}
        try:
            entries.append(KeyEntry.model_validate(fields))
        except ValidationError as error:
            reason = _explain(error, number)
            raise ValueError(f"{reason}; write tenant:key, with commas between several") from None
    return entries


def _explain(error: ValidationError, number: int = 0) -> str:
    """The first problem of a list, or of entry `number` of one, without any value."""
    problems = error.errors(include_url=False, include_input=False)
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown, problems[0])
    path = list(problem["loc"])
    if path and isinstance(path[0], int):
        number, *path = path[0], *path[1:]
    entry, field = f"entry {number + 1}", path[0] if path else None
    if problem["type"] == "extra_forbidden":
        known = ", ".join(KeyEntry.model_fields)
        return f"{entry} has {_named(str(field))}, which is unknown; the fields are {known}"
    if problem["type"] == "missing":
        return f"{entry} has no {field!r}"
    if not problem["loc"]:
        return _NO_LIST
    if field is None:
        return f"{entry} should be an object"
    if field == "key":
        return f"the key of {entry} should be 8 to 512 visible ASCII characters without spaces"
    return f"{field!r} of {entry} {problem['msg'].removeprefix('Input ')}"


def _named(field: str) -> str:
    """A field by its name, unless that may be a key."""
    is_like_known = get_close_matches(field[:40], KeyEntry.model_fields, 1)
    return f"the field {field[:40]!r}" if is_like_known else "a field"
