"""What an ONNX file says of its model, so that the file alone is enough to use it."""

import json

from sruserve.model.folder import FolderContents
from sruserve.model.state import StateLayout

PREFIX = "sruserve."
FORMAT = "1"


def metadata_of(folder: FolderContents, layout: StateLayout, kind: str) -> dict[str, str]:
    """Return a file's properties; all names begin with `PREFIX`.

    format: version of these properties. graph: "step" or "sequence". task. digest: that of the
    folder. labels: JSON list. state: JSON list of the entries of a state row. config: the folder's
    config.json. vocabulary: JSON object of the vocabulary's files, as text. case: JSON object of
    inputs that begin from a state of zeros, and the first numbers of the answer to them.
    """
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
        "state": json.dumps(entries),
        "config": config.model_dump_json(exclude_none=True),
    }
    if config.labels:
        properties["labels"] = json.dumps(config.labels)
    if folder.vocabulary:
        texts = {name: content.decode() for name, content in folder.vocabulary.items()}
        properties["vocabulary"] = json.dumps(texts)
    return {f"{PREFIX}{name}": value for name, value in properties.items()}
