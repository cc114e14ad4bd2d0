"""The file of a model's presets, and the jobs that read them."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from sruserve.model.errors import printable
from sruserve.model.files import read_regular
from sruserve.model.json_names import RepeatedName, load_json
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Result
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import ServeError
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.settings import SettingsError

_LARGEST_FILE = 16 << 20  # in bytes: parsing it stops all other threads
_SHOWN = 200  # characters of a place in the file
_MAX_PRESETS = 1024
MAX_PRESET_BYTES = 1 << 30  # of all presets of a model

Item = TypeVar("Item")
Entry = TypeVar("Entry", bound="PresetEntry")

# pydantic collects all errors of a value, each of about 600 bytes. So these stop at the first one.
Items = Annotated[list[Item], Field(fail_fast=True)]


class PresetEntry(BaseModel):
    """A JSON object, or a text alone. Subclasses name what may stand for the text."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    text: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            raise ValueError(f"may have {', '.join(cls.model_fields)}, and no other fields")
        return {"text": value} if isinstance(value, str) else value


def _check_count(entries: Any) -> Any:
    if isinstance(entries, dict) and len(entries) > _MAX_PRESETS:
        raise ValueError(f"has {len(entries):,} presets; the limit is {_MAX_PRESETS:,}")
    return entries


PresetFile = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=100)], Entry], BeforeValidator(_check_count)
]


def read_presets(file: Path, entries: TypeAdapter[dict[str, Entry]]) -> Mapping[str, Entry]:
    """The entries of a file by name; none without a file. Raises `SettingsError`."""
    try:
        content = read_regular(file, _LARGEST_FILE)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    try:
        read = entries.validate_json(content)
        load_json(content)
    except RepeatedName as repeated:
        raise SettingsError(f"{file} {repeated}: remove one of them") from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = printable(".".join(str(part) for part in problem["loc"]))[:_SHOWN]
        reason = problem["msg"].removeprefix("Value error, ")
        raise SettingsError(
            f"{file} should be a JSON object of texts by name: {place or 'it'}: {reason}"
        ) from None
    return read


def compute(
    served: ServedModel, items: Sequence[SequenceInput], state_output: StateOutput, file: Path
) -> list[Result]:
    """The results of a model's inputs, as parts of longer ones; blocks.

    Raises `SettingsError`, which names the file.
    """
    try:
        return asyncio.run(_results(served, items, state_output)) if items else []
    except ServeError as error:
        raise SettingsError(f"{file}: the presets cannot be computed: {error}") from error


async def _results(
    served: ServedModel, items: Sequence[SequenceInput], state_output: StateOutput
) -> list[Result]:
    loop = asyncio.get_running_loop()
    results: dict[int, Result] = {}
    job = Job(
        kind=JobKind.reading(served.model.config.task),
        items=items,
        loop=loop,
        deliver=results.__setitem__,
        done=loop.create_future(),
        state_output=state_output,
    )
    served.engine.submit(job)
    await job.done
    return [results[index] for index in range(len(items))]
