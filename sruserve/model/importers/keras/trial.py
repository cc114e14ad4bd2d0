"""Read a Keras file in a process of its own, which a limit on its time and memory can end.

    python -m sruserve.model.importers.keras.trial SECONDS MEMORY_BYTES PATH

HDF5 is read by a C library, which some damaged files keep busy forever. It holds the interpreter
while it reads, so no signal would end the process. This one imports no torch.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sruserve.model.errors import CheckpointError, ModelError
from sruserve.model.importers.keras.file import open_keras
from sruserve.model.own_limits import limit_this_process

_SECONDS, _MEGABYTES_IN_A_SECOND = 20, 20  # of CPU time: a base, and more for large files
_MEMORY_BYTES, _MEMORY_TIMES = 1 << 30, 4  # of address space: a base, and a multiple of the file


def try_to_read(path: Path, seconds: int = _SECONDS) -> None:
    """Raise `CheckpointError` for a file that cannot be read within the limits.

    A file that is refused by a message is accepted here: its reader has the message.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return
    seconds += size // (_MEGABYTES_IN_A_SECOND << 20)
    memory_bytes = _MEMORY_BYTES + _MEMORY_TIMES * size
    command = [sys.executable, "-P", "-m", __name__, str(seconds), str(memory_bytes), str(path)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    trial = subprocess.run(  # noqa: S603 - our own interpreter and module, and no shell
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if trial.returncode:
        raise CheckpointError(
            f"{path} is damaged: HDF5 cannot read it within {seconds} seconds and "
            f"{memory_bytes >> 20:,} MiB of memory; save the model with Keras again"
        )


def _run(seconds: int, memory_bytes: int, path: Path) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    limit_this_process(seconds, memory_bytes)
    with suppress(ModelError), open_keras(path) as (_, weights):
        weights.file.read_all()
    return 0


if __name__ == "__main__":
    sys.exit(_run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
