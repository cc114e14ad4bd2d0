"""Load a model into this process."""

import logging
import os
from collections.abc import Sequence

import sruserve
from sruserve.api.local_model import LocalModel
from sruserve.api.local_settings import find_folder, local_settings
from sruserve.api.model import Model

log = logging.getLogger("sruserve.api")

_SPINS = (
    "OpenMP's threads spin while they wait, because torch was imported first: on busy cores this "
    "makes inputs slow; import sruserve before torch, or set GOMP_SPINCOUNT=1000"
)


def load(
    model: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | None = None,
    state_keys: str | Sequence[str] | None = None,
) -> Model:
    """Load a model folder, or a bundled model by its name; returns when it is warm.

    >>> import sruserve
    >>> model = sruserve.load("question-type")
    >>> model.classify("How far is it from Denver to Aspen?").label
    'number'
    >>> model.close()

    device: `cpu`, `cuda`, `cuda:1` and so on, or `auto`: the first GPU, else the CPU.
    dtype: `float32`, `bfloat16` or, on a GPU, `float16`; None: the one in the folder.
    state_keys: master keys of states, 32 bytes each in base64 or hex: the first one seals, all of
        them open. None: a random key, so states end with the process.

    What is None is taken from the environment first: `SRUSERVE_DEVICE`, `SRUSERVE_DTYPE` and
    `SRUSERVE_STATE_KEYS`. The other settings of a server's engine and limits count, too.

    Raises `ModelNotFound`, which lists the bundled models, `ModelLoadFailed`, `InvalidRequest` for
    an invalid argument or variable, or `ForkedProcess`. Each of them is a `sruserve.ServeError`.
    """
    settings = local_settings(find_folder(model), device, dtype, state_keys)
    if sruserve.torch_came_first:
        log.info(_SPINS)
    return Model(LocalModel.load(settings))
