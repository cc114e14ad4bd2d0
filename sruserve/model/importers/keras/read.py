"""Networks that Keras saved as a whole: `.keras` and `.h5`."""

from pathlib import Path

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.keras.file import open_keras
from sruserve.model.importers.keras.graph import layers_in_order
from sruserve.model.importers.keras.layers import Reader
from sruserve.model.importers.keras.trial import try_to_read
from sruserve.model.importers.options import known
from sruserve.model.importers.wiring.assemble import assemble
from sruserve.model.names import Task


def read(path: Path, options: Options | None, task: Task) -> Imported:
    """See `FileFormat`. The file describes the whole network, so there are no options."""
    known(options, ())
    try_to_read(path)
    try:
        with open_keras(path) as (description, weights):
            reader = Reader(weights)
            for layer in layers_in_order(description):
                reader.read(layer)
    except RecursionError as error:
        raise CheckpointError(
            f"{path}: the model's description is nested too deeply; save a model whose layers are "
            "not models themselves"
        ) from error
    return assemble(reader.steps, task, reader.features, reader.notes)
