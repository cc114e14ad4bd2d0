"""Which model folders to serve."""

from pathlib import Path

import sruserve
from sruserve.server.settings import Settings, SettingsError

BUNDLED = Path(sruserve.__file__).parent / "demo"


def find_models(settings: Settings) -> tuple[Path, ...]:
    """The given folders; else those in `SRUSERVE_MODELS`; else the bundled ones.

    Raises `SettingsError` if one is missing, or if two have the same name, which is the model's id.
    """
    folders = settings.model_folders or _folders_in(settings.models or BUNDLED)
    by_name: dict[str, Path] = {}
    for folder in folders:
        path = folder.resolve()
        if not (path / "config.json").is_file():
            raise SettingsError(
                f"{folder} is not a model folder: it has no config.json; "
                "`sruserve import` makes model folders"
            )
        if path.name in by_name:
            raise SettingsError(
                f"{by_name[path.name]} and {path} would both be served as '{path.name}'; "
                "rename one of the folders"
            )
        by_name[path.name] = path
    return tuple(by_name.values())


def _folders_in(parent: Path) -> list[Path]:
    """The model folders in a folder, sorted; anything else in it is passed over."""
    if not parent.is_dir():
        raise SettingsError(f"SRUSERVE_MODELS={parent} is not a folder")
    folders = sorted(path.parent for path in parent.glob("*/config.json"))
    if not folders:
        raise SettingsError(
            f"there is no model folder in {parent}; name model folders on the command line, or set "
            "SRUSERVE_MODELS to a folder that holds some"
        )
    return folders
