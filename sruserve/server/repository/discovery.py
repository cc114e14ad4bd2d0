"""Find the model folders to serve."""

from collections.abc import Iterable
from pathlib import Path

from sruserve.model.bundled import BUNDLED, bundled_models, path_of_model
from sruserve.model.errors import printable
from sruserve.model.versions import CONFIG_FILE, ONNX_FILE, VERSION_MARK, versions
from sruserve.server.logs.escapes import escaped
from sruserve.server.settings import Settings, SettingsError, variable_name

_MAX_NAMES = 8


def find_models(settings: Settings) -> tuple[Path, ...]:
    """The folders of the command line; else those in `SRUSERVE_MODELS`; else the bundled ones.

    The command line may also name bundled models. Each folder is a model folder, or contains
    numbered model folders: the versions of one model. Raises `SettingsError` if one is missing, or
    if two have the same name, which is the model's id.
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
    return {path.name: path for path in paths if _is_loadable(path)}


def _find(settings: Settings) -> tuple[Path, ...]:
    by_name: dict[str, Path] = {}
    for folder in _candidates(settings):
        path = folder.resolve()
        if not versions(path):
            raise SettingsError(_why_no_model(folder))
        if not _is_id(path.name):
            raise SettingsError(
                f"the folder {printable(str(path))} cannot be served: its name, which is the "
                "model's id, has control or invisible characters, line breaks or bytes that are "
                "no UTF-8; rename it"
            )
        if VERSION_MARK in path.name:
            raise SettingsError(
                f"the folder {path} cannot be served: its name, which is the model's id, has an "
                f"'{VERSION_MARK}', which stands before a version; rename it"
            )
        if path.name in by_name:
            raise SettingsError(
                f"{by_name[path.name]} and {path} would both be served as '{path.name}'; "
                "rename one of the folders"
            )
        by_name[path.name] = path
    if not by_name:
        if versions(_parent(settings)):
            raise SettingsError(
                f"SRUSERVE_MODELS={_parent(settings)} is itself a model folder: set it to the "
                f"folder that holds it, or run: sruserve serve {_parent(settings)}"
            )
        raise SettingsError(
            f"there is no model folder in {_parent(settings)}; name model folders on the command "
            "line, or set SRUSERVE_MODELS to a folder that holds some"
        )
    return tuple(by_name.values())


def _is_id(name: str) -> bool:
    """Whether a name can be a model's id, in replies, metrics and lines of the log."""
    return escaped(name) == name


def _is_loadable(path: Path) -> bool:
    return bool(versions(path)) and _is_id(path.name) and VERSION_MARK not in path.name


def _candidates(settings: Settings) -> Iterable[Path]:
    """The models of the command line, or the model folders in a folder, sorted."""
    if settings.model_folders:
        return map(path_of_model, settings.model_folders)
    parent = _parent(settings)
    if not parent.is_dir():
        raise SettingsError(
            f"SRUSERVE_MODELS={parent} is not a folder; set it to a folder that holds model folders"
        )
    return _models_in(parent)


def _models_in(parent: Path) -> list[Path]:
    # a name that begins with a dot is an unfinished import
    return sorted(path for path in parent.glob("[!.]*") if versions(path))


def _why_no_model(folder: Path) -> str:
    """Why a folder cannot be served, and what to do."""
    if not folder.exists():
        return (
            f"there is no folder {folder}; name the folder of a model, which `sruserve import` "
            f"makes, or a bundled model: {', '.join(bundled_models())}"
        )
    if not folder.is_dir():
        return (
            f"{folder} is a file, not a model folder; `sruserve import` makes a model folder from "
            "a checkpoint"
        )
    if models := _models_in(folder):
        names = [path.name for path in models]
        shown = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
        return (
            f"{folder} is not a model folder, but holds model folders: {shown}; to serve all of "
            f"them, run: SRUSERVE_MODELS={folder} sruserve serve"
        )
    return (
        f"{folder} is not a model folder: it has neither {CONFIG_FILE} nor {ONNX_FILE}, and no "
        "numeric folder that has one of these; `sruserve import` makes model folders"
    )


def _parent(settings: Settings) -> Path:
    return settings.models or BUNDLED
