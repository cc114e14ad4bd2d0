"""Presets: named prefixes whose states are computed once, when their model is loaded."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from sruserve.model.errors import printable
from sruserve.model.files import read_regular
from sruserve.model.folder_files import PRESETS_FILE
from sruserve.server.engine.job import Job, JobKind, Result, SequenceInput, Snapshot, StateOutput
from sruserve.server.errors import CannotStream, EmptyInput, ServeError
from sruserve.server.repository.encoding import encode_features, encode_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.settings import SettingsError


class Prefix(BaseModel):
    """The beginning of a stream: one of these fields, or a text alone."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    text: str | None = None
    ids: list[int] | None = None
    features: list[list[float]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("should have one of 'text', 'ids' and 'features'")
        return self


_LARGEST_FILE = 16 << 20  # in bytes: parsing it stops all other threads
_MAX_PRESETS, _MAX_STATE_BYTES = 1024, 1 << 30  # of presets, and of their states
_FILE = TypeAdapter(
    Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=100)], Prefix],
        Field(max_length=_MAX_PRESETS),
    ]
)


def compute_presets(
    served: ServedModel, max_state_bytes: int = _MAX_STATE_BYTES
) -> Mapping[str, Snapshot]:
    """Compute the states of the presets in a model's folder, if it has any; blocks.

    A state is the same as if a request had begun with the prefix. Raises `SettingsError`, which
    names the file and the preset, if a state cannot be computed.

    max_state_bytes: the limit of all states together.
    """
    file = served.model.path / PRESETS_FILE
    prefixes = _read_prefixes(file)
    size = len(prefixes) * served.model.network.layout.nbytes
    if size > max_state_bytes:
        raise SettingsError(
            f"{file}: the states of {len(prefixes)} presets need {size:,} bytes, over the limit "
            f"of {max_state_bytes:,} bytes: leave some out"
        )
    items = []
    for name, prefix in prefixes.items():
        try:
            items.append(_item(served, prefix))
        except ServeError as error:
            raise SettingsError(f"{file}: preset {name!r}: {error}") from None
    if not items:
        return {}
    try:
        results = asyncio.run(_results(served, items))
    except ServeError as error:
        raise SettingsError(f"{file}: the presets cannot be computed: {error}") from error
    return {
        name: result.state for name, result in zip(prefixes, results, strict=True) if result.state
    }


def _read_prefixes(file: Path) -> dict[str, Prefix]:
    try:
        content = read_regular(file, _LARGEST_FILE)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    try:
        return _FILE.validate_json(content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = printable(".".join(str(part) for part in problem["loc"]))
        reason = problem["msg"].removeprefix("Value error, ")
        raise SettingsError(
            f"{file} should be a JSON object of texts by name: {place or 'it'}: {reason}"
        ) from None


def _item(served: ServedModel, prefix: Prefix) -> SequenceInput:
    served.check_streams("preset")
    if served.model.network.crf is not None:
        raise CannotStream(
            f"{served.name} has a CRF, whose labels of a preset's text depend on what follows: "
            "remove the preset"
        )
    if prefix.features is not None:
        if not prefix.features:
            raise EmptyInput("'features' has no step; give at least one")
        return SequenceInput(encode_features(served, prefix.features), more=True)
    content, field = (prefix.text, "text") if prefix.ids is None else (prefix.ids, "ids")
    ids, word = encode_input(served, content or "", None, field, more=True)
    return SequenceInput(ids, word=word, more=True)


async def _results(served: ServedModel, items: Sequence[SequenceInput]) -> list[Result]:
    """The results of the prefixes, read as parts of longer texts."""
    loop = asyncio.get_running_loop()
    results: dict[int, Result] = {}
    job = Job(
        kind=JobKind.reading(served.model.config.task),
        items=items,
        loop=loop,
        deliver=results.__setitem__,
        done=loop.create_future(),
        state_output=StateOutput.COPY,
    )
    served.engine.submit(job)
    await job.done
    return [results[index] for index in range(len(items))]
