"""What an ONNX file says of its model, so that the file alone is enough to use it."""

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Json

from sruserve.model.folder import FolderContents
from sruserve.model.state import StateLayout

PREFIX = "sruserve."
FORMAT = "1"
OPSET = 20  # the version of all operators in a file
CASE_NUMBERS = 64  # of a case's answer that a file holds


class Entry(BaseModel):
    """A part of a state row."""

    name: str
    shape: list[int]
    offset: int


class Case(BaseModel):
    """Inputs that begin from a state of zeros, and the first numbers of the answer to them.

    sizes: the dynamic dimensions.
    """

    inputs: dict[str, list[Any]]
    sizes: dict[str, Annotated[int, Field(ge=1, le=16)]]
    answer: Annotated[list[float], Field(min_length=1, max_length=CASE_NUMBERS)]


class Properties(BaseModel):
    """A file's properties; their names begin with `PREFIX`, and all but the plain ones are JSON.

    graph: its kind. digest: that of the model folder. parameters: number of trained numbers.
    weights: of the file: "int8", or None for floats.
    vocabulary: the contents of the vocabulary's files. config: the folder's config.json, as text.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal["1"] = "1"
    graph: Literal["step", "sequence"]
    task: str
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    parameters: Annotated[int, Field(ge=0)]
    weights: Literal["int8"] | None = None
    state: Json[list[Entry]]
    config: str
    labels: Json[list[str]] = Field(default_factory=list)
    vocabulary: Json[dict[str, str]] = Field(default_factory=dict)
    case: Json[Case]

    @classmethod
    def read(cls, texts: dict[str, str]) -> Self:
        """Read the properties of a file, by name without prefix; raises `ValidationError`."""
        return cls.model_validate(texts)


def metadata_of(folder: FolderContents, layout: StateLayout, kind: str) -> dict[str, str]:
    """Return a file's properties but for its case; see `Properties`."""
    config = folder.config
    entries = [
        {"name": entry.name, "shape": list(entry.shape), "offset": entry.offset}
        for entry in layout.entries
    ]
    properties = {
        "format": FORMAT,
        "graph": kind,
        "task": config.task,
        "digest": folder.digest,
        "parameters": str(folder.parameters),
        "state": json.dumps(entries),
        "config": config.model_dump_json(exclude_none=True),
    }
    if config.weights is not None:
        properties["weights"] = config.weights
    if config.labels:
        properties["labels"] = json.dumps(config.labels)
    if folder.vocabulary:
        texts = {name: content.decode() for name, content in folder.vocabulary.items()}
        properties["vocabulary"] = json.dumps(texts)
    return {f"{PREFIX}{name}": value for name, value in properties.items()}


def checksum(model: Any) -> str:
    """Return the SHA-256, in hex, of a model's graph and of all its properties but this one.

    model: an `onnx.ModelProto`.
    """
    content = hashlib.sha256(model.graph.SerializeToString(deterministic=True))
    for item in sorted((item.key, item.value) for item in model.metadata_props):
        if item[0] != f"{PREFIX}checksum":
            content.update(json.dumps(item).encode())
    return content.hexdigest()
