"""The settings of a model in this process: the environment's, with limits for one's own inputs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sruserve.model.bundled import bundled_models, path_of_model
from sruserve.model.errors import printable
from sruserve.model.versions import VERSION_MARK, versions
from sruserve.server.errors import InvalidRequest, ModelNotFound
from sruserve.server.settings import Settings, SettingsError, dtype_of, load_settings, variable_name

# What protects a server from its clients does not apply, or is wider: a caller gives its own
# memory. A variable of the environment wins.
_WIDE: dict[str, Any] = {
    "max_body_bytes": 256 << 20,
    "max_input_bytes": 64 << 20,
    "max_queue_bytes": 1 << 30,
    "max_queue_requests": 1 << 14,
    "max_inputs": 1 << 16,
    "max_new_tokens": 10_000_000,
}
_SERVERS_ONLY: dict[str, Any] = {
    "workers": 1,
    "model_versions": 1,
    "model_control": False,
    "grpc_port": None,
    "api_keys": None,
    "api_keys_file": None,
    "store": None,
    "traces": "off",
    "tls_cert": None,
    "tls_key": None,
    "tls_client_ca": None,
}


def find_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a model: a path, or else the name of a bundled model.

    Raises `ModelNotFound`, which lists the bundled models.
    """
    path = path_of_model(Path(name))
    if versions(path):
        return path.resolve()
    why = "is a folder without a model" if path.is_dir() else "is no model folder"
    raise ModelNotFound(
        f"{printable(str(name))!r} {why}, and no bundled model: give the path of a folder that "
        f"`sruserve import` or `sruserve.save` made, or one of {', '.join(bundled_models())}",
        param="model",
    )


def local_settings(
    folder: Path,
    device: str | None = None,
    dtype: str | None = None,
    state_keys: str | Sequence[str] | None = None,
    servers_limits: Sequence[str] = (),
) -> Settings:
    """The settings for one model folder. None: what the environment says.

    servers_limits: the names of limits that are as narrow as a server's.

    Raises `InvalidRequest`, which names the argument or the environment variable.
    """
    values: dict[str, Any] = {**_SERVERS_ONLY, "model_folders": (folder,)}
    values |= {
        name: value
        for name, value in _WIDE.items()
        if name not in servers_limits and not os.environ.get(variable_name(name))
    }
    keys = state_keys if state_keys is None or isinstance(state_keys, str) else ",".join(state_keys)
    parameters = {"device": device, "dtype": dtype, "state_keys": keys}
    values |= {name: value for name, value in parameters.items() if value is not None}
    try:
        settings = load_settings(**values)
    except SettingsError as error:
        param = next((n for n in parameters if str(error).startswith(variable_name(n))), None)
        raise InvalidRequest(str(error), param=param) from None
    if VERSION_MARK in folder.name:
        raise InvalidRequest(
            f"the folder {folder} has an '{VERSION_MARK}' in its name; rename it", param="model"
        )
    if dtype is None and not isinstance(settings.dtype, dict):
        return settings
    # by name, so that no other dtype is taken instead; a server's may name other models
    own = dtype_of(settings, folder.name)
    return settings.model_copy(update={"dtype": {folder.name: own} if own else None})
