"""The options of an import where the file describes the wiring."""

from collections.abc import Mapping, Sequence
from typing import Any

from sruserve.model.config import LABELLED
from sruserve.model.errors import OptionError
from sruserve.model.importers.format import Imported
from sruserve.model.importers.options import shown
from sruserve.model.importers.two_classes import with_two_classes
from sruserve.model.names import Task


def agreed(
    imported: Imported,
    task: Task,
    head: Mapping[str, Any],
    outputs: Mapping[str, Any],
    labels: Sequence[str] | None,
) -> tuple[Imported, dict[str, Any], dict[str, Any]]:
    """Return the network, its head's options and those of task regress.

    One output with a sigmoid becomes two classes, unless there is one label.

    Raises `OptionError` for an option that contradicts the file.
    """
    own = imported.head
    pooling = own.pooling if isinstance(own.pooling, str) else [*own.pooling]
    stated: dict[str, Any] = {"pooling": pooling, "final": [*own.final]}
    if "activation" in own.model_fields_set:
        stated["activation"] = own.activation
    for name, value in head.items():
        if name == "combine" or (name in stated and stated[name] != value):
            raise OptionError(
                f"--options: {name} is {shown(value)}, but the file says {stated.get(name)}: leave "
                "the option out"
            )
    kept = {name: value for name, value in head.items() if name == "activation"}
    if "activation" in stated:
        kept["activation"] = own.activation
    if task == "regress":
        return imported, kept, {"steps": imported.steps, **outputs}
    binary = len(imported.tensors.get("output.weight", ())) == 1 and own.activation == "sigmoid"
    if task in LABELLED and binary and (labels is None or len(labels) == 2):
        imported = with_two_classes(imported, labels or ("0", "1"))
        kept["activation"] = "softmax"
    return imported, kept, {}
