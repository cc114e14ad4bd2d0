"""Find the model folders to serve."""

from collections.abc import Iterable
from pathlib import Path

import sruserve
from sruserve.model.versions import versions
from sruserve.server.settings import Settings, SettingsError, variable_name

BUNDLED = Path(sruserve.__file__).parent / "demo"


def find_models(settings: Settings) -> tuple[Path, ...]:
    """The folders of the command line; else those in `SRUSERVE_MODELS`; else the bundled ones.

    Each is a model folder, or contains numbered model folders: the versions of one model. Raises
    `SettingsError` if one is missing, or if two have the same name, which is the model's id.
    """
    try:
        return _find(settings)
    except SettingsError:
        raise
    except (OSError, ValueError) as error:  # an invalid or unreadable path
        variable = variable_name("model_folders" if settings.model_folders else "models")
        raise SettingsError(f"{variable}: cannot be read: {str(error)[:200]}") from None


def loadable_models(settings: Settings) -> dict[str, Path]:
    """The model folders that can be loaded now, by name, while the server runs."""
    paths = (folder.resolve() for folder in _candidates(settings))
    return {path.name: path for path in paths if versions(path)}


def _find(settings: Settings) -> tuple[Path, ...]:
    by_name: dict[str, Path] = {}
    for folder in _candidates(settings):
        path = folder.resolve()
        if not versions(path):
            raise SettingsError(
                f"{folder} is not a model folder: it has no config.json, and no numeric folder "
                "that has one; `sruserve import` makes model folders"
            )
        if path.name in by_name:
            raise SettingsError(
                f"{by_name[path.name]} and {path} would both be served as '{path.name}'; "
                "rename one of the folders"
            )
        by_name[path.name] = path
    if not by_name:
        raise SettingsError(
            f"there is no model folder in {_parent(settings)}; name model folders on the command "
            "line, or set SRUSERVE_MODELS to a folder that holds some"
        )
    return tuple(by_name.values())


def _candidates(settings: Settings) -> Iterable[Path]:
    """The folders of the command line, or the model folders in a folder, sorted."""
    if settings.model_folders:
        return settings.model_folders
    parent = _parent(settings)
    if not parent.is_dir():
        raise SettingsError(f"SRUSERVE_MODELS={parent} is not a folder")
    # a name that begins with a dot is an unfinished import
    return sorted(path for path in parent.glob("[!.]*") if versions(path))


def _parent(settings: Settings) -> Path:
    return settings.models or BUNDLED
