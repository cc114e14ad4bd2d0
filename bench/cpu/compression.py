"""Compress a held-out text by the bundled language model, xz and zstd: bytes and seconds.

Prints the table of docs/compression.md. zstd is the system's command.
"""

import io
import lzma
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import sruserve  # noqa: F401, before torch: it limits how long OpenMP's threads spin
from bench.report.arguments import command_line
from bench.report.machine import ROOT
from bench.report.tables import markdown_table
from sruserve.compression.compress import compress
from sruserve.compression.container import BLOCK_BYTES, Reader
from sruserve.compression.decompress import decompress
from sruserve.compression.header import read_header
from sruserve.model.folder import Model, load_model

_HEAD = ("", "bytes", "bits per character", "compress", "decompress")
Codec = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def codecs(model: Model) -> dict[str, Codec]:
    """Return compression and decompression by each candidate that is here."""
    by_name: dict[str, Codec] = {}
    for block in (BLOCK_BYTES, 1 << 16):
        by_name[f"sruserve, {model.name}, blocks of {block:,}"] = (
            _compressing(model, block),
            _back(model),
        )
    by_name["xz -9"] = (lambda data: lzma.compress(data, preset=9), lzma.decompress)
    if zstd := shutil.which("zstd"):
        by_name["zstd -19 --ultra"] = (_filter(zstd, "-19", "--ultra", "-c"), _filter(zstd, "-dc"))
    return by_name


def _compressing(model: Model, block_bytes: int) -> Callable[[bytes], bytes]:
    def run(data: bytes) -> bytes:
        target = io.BytesIO()
        compress(io.BytesIO(data), target, model, block_bytes)
        return target.getvalue()

    return run


def _back(model: Model) -> Callable[[bytes], bytes]:
    def run(file: bytes) -> bytes:
        source, target = Reader(io.BytesIO(file)), io.BytesIO()
        decompress(source, target, read_header(source), model)
        return target.getvalue()

    return run


def _filter(*command: str) -> Callable[[bytes], bytes]:
    def run(data: bytes) -> bytes:
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout

    return run


def main() -> None:
    parser = command_line("bench.cpu.compression", __doc__)
    parser.add_argument("--text", type=Path, default=ROOT / "tests/data/shakespeare.tail")
    options = parser.parse_args()
    data = options.text.read_bytes()
    rows = []
    for name, (pack, unpack) in codecs(load_model(ROOT / "sruserve/demo/shakespeare")).items():
        begin = perf_counter()
        file = pack(data)
        middle = perf_counter()
        if unpack(file) != data:
            sys.exit(f"{name} lost something")
        seconds = middle - begin, perf_counter() - middle
        bits = 8 * len(file) / len(data.decode())
        rows.append((name, f"{len(file):,}", f"{bits:.2f}", *(f"{s:.2f} s" for s in seconds)))
    print(markdown_table(_HEAD, rows))


if __name__ == "__main__":
    main()
