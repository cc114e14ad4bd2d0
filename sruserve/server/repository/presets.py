"""Presets: named prefixes whose states are computed once, when their model is loaded."""

from collections.abc import Mapping
from typing import Self

from pydantic import TypeAdapter, model_validator

from sruserve.model.folder_files import PRESETS_FILE
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import CannotStream, EmptyInput, ServeError
from sruserve.server.repository.document_presets import document_presets
from sruserve.server.repository.encoding import encode_features, encode_input
from sruserve.server.repository.passage import DocumentPreset
from sruserve.server.repository.preset_file import (
    MAX_PRESET_BYTES,
    Items,
    PresetEntry,
    PresetFile,
    compute,
    read_presets,
)
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.settings import SettingsError


class Prefix(PresetEntry):
    """The beginning of a stream: one of these fields, or a text alone."""

    ids: Items[int] | None = None
    features: Items[Items[float]] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("should have one of 'text', 'ids' and 'features'")
        return self


_FILE: TypeAdapter[dict[str, Prefix]] = TypeAdapter(PresetFile[Prefix])


def compute_presets(
    served: ServedModel, max_bytes: int = MAX_PRESET_BYTES
) -> Mapping[str, Snapshot | DocumentPreset]:
    """Compute the presets in a model's folder, if it has any; blocks.

    A state is the same as if a request had begun with the prefix. Raises `SettingsError`, which
    names the file and the preset, if one cannot be computed.

    max_bytes: the limit of all states, or documents, together.
    """
    if served.model.config.reader is not None:
        return document_presets(served, max_bytes)
    file = served.model.path / PRESETS_FILE
    prefixes = read_presets(file, _FILE)
    size = len(prefixes) * served.model.network.layout.nbytes
    if size > max_bytes:
        raise SettingsError(
            f"{file}: the states of {len(prefixes)} presets need {size:,} bytes, over the limit "
            f"of {max_bytes:,} bytes: leave some out"
        )
    items = []
    for name, prefix in prefixes.items():
        try:
            items.append(_item(served, prefix))
        except ServeError as error:
            raise SettingsError(f"{file}: preset {name!r}: {error}") from None
    results = compute(served, items, StateOutput.COPY, file)
    return {
        name: result.state for name, result in zip(prefixes, results, strict=True) if result.state
    }


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
