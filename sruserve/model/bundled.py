"""The bundled models: folders of this package, which their names stand for."""

from pathlib import Path

import sruserve
from sruserve.model.versions import versions

BUNDLED = Path(sruserve.__file__).parent / "demo"


def bundled_models() -> dict[str, Path]:
    """The folders of the bundled models, by name."""
    return {path.name: path for path in sorted(BUNDLED.glob("[!.]*")) if versions(path)}


def path_of_model(model: Path) -> Path:
    """The folder of a model: the path itself, or that of the bundled model that it names.

    A path that is a file, or holds a model, wins over the name.
    """
    bundled = bundled_models().get(str(model))
    return model if bundled is None or model.is_file() or versions(model) else bundled
