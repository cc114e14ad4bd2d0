"""Try a tokenizer.json in a process of its own, which a limit on its time and memory can end.

    python -m sruserve.model.text.tokenizer_trial < tokenizer.json

The library holds the interpreter while it loads a file, and some files keep it busy for hours or
take all memory, at the load or at a text that ends inside an added token.
"""

import json
import os
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from sruserve.model.errors import FolderError, ModelError, TextError
from sruserve.model.own_limits import limit_this_process

SECONDS = 15  # of CPU time; a tokenizer of 256,000 entries takes 4
# Of these, to load it, which the server then does again: a base, and for each megabyte of the file.
LOAD_SECONDS, _MEGABYTE_SECONDS = 2.0, 0.5
MEMORY_BYTES = 4 << 30  # of address space; one of 256,000 entries takes 1
_SMALL_BYTES = 1 << 20
_MAX_TRIALS = 4096  # texts
_REFUSED = 3  # exit code: the file is refused, and the reason is printed
_SOURCE = "<tokenizer>"
# Digests of files that have passed, and their limits: versions of a model have the same tokenizer.
_passed: OrderedDict[tuple[bytes, int, int, float], None] = OrderedDict()
_MAX_PASSED = 1024


def check_tokenizer(
    content: bytes,
    source: object,
    seconds: int = SECONDS,
    memory_bytes: int = MEMORY_BYTES,
    load_seconds: float = LOAD_SECONDS,
) -> None:
    """Raise `FolderError` for a tokenizer that cannot be loaded and run within the limits.

    content: of a tokenizer.json. source: its name in error messages. seconds: of CPU time.
    memory_bytes: of address space. load_seconds: of CPU time to load a small file.
    """
    if is_plain(content):
        return
    key = sha256(content).digest(), seconds, memory_bytes, load_seconds
    if key not in _passed:
        _try(content, source, seconds, memory_bytes, load_seconds)
        _passed[key] = None
        if len(_passed) > _MAX_PASSED:
            _passed.popitem(last=False)


def _try(
    content: bytes, source: object, seconds: int, memory_bytes: int, load_seconds: float
) -> None:
    limits = map(str, (seconds, memory_bytes, load_seconds))
    command = [sys.executable, "-P", "-m", __name__, *limits]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    path = os.pathsep.join(filter(None, sys.path))
    trial = subprocess.run(  # noqa: S603 - our own interpreter, module and numbers
        command,
        input=content,
        capture_output=True,
        env={**os.environ, **threads, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    if trial.returncode == _REFUSED:
        reason = trial.stdout.decode(errors="replace").rstrip()
        raise FolderError(reason.replace(_SOURCE, str(source), 1))
    if trial.returncode:
        raise FolderError(
            f"{source} is not a usable tokenizer.json: to load it and to read short texts takes "
            f"more than {seconds} seconds or {memory_bytes >> 20:,} MiB of memory"
        )


def is_plain(content: bytes) -> bool:
    """Whether a small file only maps words to ids, which takes a time linear in its length."""
    if len(content) > _SMALL_BYTES:  # to look into it would hold the interpreter, too
        return False
    try:
        described = json.loads(content)
    except (ValueError, RecursionError):
        return True  # the library has the better message
    if not isinstance(described, dict):
        return False
    if any(described.get(part) for part in ("normalizer", "post_processor", "decoder")):
        return False
    model, splits = described.get("model"), described.get("pre_tokenizer")
    return (
        isinstance(model, dict)
        and model.get("type") == "WordLevel"
        and splits == {"type": "WhitespaceSplit"}
        and not described.get("added_tokens")
    )


def _run(seconds: int, memory_bytes: int, load_seconds: float) -> int:
    """Load the tokenizer of standard input and read the beginnings of its added tokens."""
    limit_this_process(seconds, memory_bytes)
    from sruserve.model.text.vocabulary_files import tokenizer_codec

    content = sys.stdin.buffer.read()
    begin = time.process_time()
    try:
        codec = tokenizer_codec(content, _SOURCE)
    except ModelError as error:
        print(error)
        return _REFUSED
    limit = load_seconds + _MEGABYTE_SECONDS * len(content) / 1e6
    if (took := time.process_time() - begin) > limit:
        print(
            f"{_SOURCE} is not a usable tokenizer.json: to load {len(content):,} bytes takes "
            f"{took:.1f} seconds; the limit is {limit:.1f}"
        )
        return _REFUSED
    for text in _trials(json.loads(content)):
        try:
            codec.encode(text)
        except TextError:
            continue
    return 0


def _trials(described: dict[str, Any]) -> Iterator[str]:
    """Beginnings of added tokens, where the library looks for the rest."""
    count = 0
    for token in described.get("added_tokens") or ():
        for end in range(1, len(token["content"]) + 1):
            yield token["content"][:end]
            count += 1
            if count == _MAX_TRIALS:
                return


if __name__ == "__main__":
    sys.exit(_run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
