"""The commands that compress files by a language model: compress, decompress."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from sruserve.cli_models import DTypeOption, load
from sruserve.cli_shared import STANDARD, fail, progress_bar, reading
from sruserve.cli_signals import cleaning_up
from sruserve.compression.container import BLOCK_BYTES, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES
from sruserve.model.names import DType

_SUFFIX = ".sruz"

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The file to write; -: standard output.", readable=False),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def compress(
    file: Annotated[
        Path, typer.Argument(readable=False, help="Any file; -: standard input.", allow_dash=True)
    ],
    model: Annotated[
        str, typer.Option(help="A model folder with task generate, or a bundled model's name.")
    ] = "shakespeare",
    output: OutputOption = None,
    force: ForceOption = False,
    block_bytes: Annotated[
        int,
        typer.Option(
            min=MIN_BLOCK_BYTES,
            max=MAX_BLOCK_BYTES,
            help="Bytes of a block. Smaller ones are decompressed faster, more at a time; larger "
            "ones compress better.",
        ),
    ] = BLOCK_BYTES,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Device to compute on.")
    ] = "cpu",
    dtype: DTypeOption = None,
) -> None:
    """Compress any file by a language model, without loss.

    Writes FILE.sruz and keeps FILE. Text like that which the model was trained on becomes smallest.
    The file can be decompressed by the same model on the same build and kind of processor only: the
    network must compute the same bits, step by step, that it computed here in long passes.
    """
    from sruserve.compression.compress import compress
    from sruserve.model.errors import ModelError

    out = output or (STANDARD if file == STANDARD else Path(f"{file}{_SUFFIX}"))
    if out == STANDARD and sys.stdout.isatty():
        fail(ValueError("a compressed file is no text for a terminal: name a file with --output"))
    try:
        with cleaning_up(), reading(file) as source, _writing(out, force) as target:
            loaded = load(_folder(model), device, dtype)
            with progress_bar() as progress:
                bar = progress.add_task("compressing", total=_size(file))
                sizes = compress(
                    source, target, loaded, block_bytes, lambda n: progress.advance(bar, n)
                )
    except (ModelError, OSError) as error:
        fail(_explained(error))
    _report(out, sizes.original, sizes.compressed)


def decompress(
    file: Annotated[
        Path,
        typer.Argument(
            readable=False,
            help="A file of `sruserve compress`; -: standard input.",
            allow_dash=True,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="The folder of the file's model, or a bundled model's name; default: the bundled "
            "model of the name in the file.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = None,
    force: ForceOption = False,
    any_build: Annotated[
        bool,
        typer.Option(
            "--any-build",
            help="Try a file of another kernel, build or device, too. It ends with an error "
            "unless the original comes out.",
        ),
    ] = False,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Most bytes of the original. Default: 64 times those of the file, and 1 MiB for "
            "small files.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:N",
            help="Device to compute on; default: that of the file.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        DType | None, typer.Option(help="Compute dtype; default: that of the file.")
    ] = None,
) -> None:
    """Decompress a file of `sruserve compress`.

    Writes FILE without .sruz and keeps FILE.sruz. Exits with 1, and writes no file, if the file is
    damaged, or a bit of a probability differs from what it was when the file was compressed.
    """
    from sruserve.compression.container import Reader
    from sruserve.compression.decompress import decompress
    from sruserve.compression.header import read_header
    from sruserve.model.errors import ModelError

    out = output or (STANDARD if file == STANDARD else file.with_suffix(""))
    if output is None and file not in (STANDARD, file.with_suffix(_SUFFIX)):
        fail(ValueError(f"{file} does not end with {_SUFFIX}: name the new file with --output"))
    try:
        with cleaning_up(), reading(file) as source, _writing(out, force) as target:
            reader = Reader(source)
            header = read_header(reader)
            folder = _folder(model) if model else _bundled(header.model)
            device = device or ("cpu" if header.device == "cpu" else "cuda")
            loaded = load(folder, device, dtype or header.dtype)
            with progress_bar() as progress:
                bar = progress.add_task("decompressing", total=_size(file), completed=reader.bytes)
                sizes = decompress(
                    reader,
                    target,
                    header,
                    loaded,
                    any_build,
                    lambda n: progress.advance(bar, n),
                    max_bytes,
                )
    except (ModelError, OSError) as error:
        fail(_explained(error))
    _report(out, sizes.compressed, sizes.original)


def _folder(name: str) -> Path:
    """Return the folder of a model that the caller names, or end the command."""
    from sruserve.api.local_settings import find_folder
    from sruserve.server.errors import ModelNotFound

    try:
        return find_folder(name)
    except ModelNotFound as error:
        fail(error)


def _bundled(name: str) -> Path:
    """Return the folder of the model that a file names, or end the command."""
    from sruserve.model.bundled import bundled_models
    from sruserve.model.errors import printable

    folder = bundled_models().get(name)
    if folder is None:
        fail(
            ValueError(
                f"the file was compressed by the model {printable(name)[:100]}, which is not "
                "bundled: name its folder with --model"
            )
        )
    return folder


@contextmanager
def _writing(out: Path, force: bool) -> Iterator[BinaryIO]:
    """Yield the output, which appears under its name only when it is complete."""
    from sruserve.model.atomic_file import new_file

    if out == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with new_file(out, force) as target:
        yield target


def _size(file: Path) -> int | None:
    return None if file == STANDARD else file.stat().st_size


def _explained(error: Exception) -> Exception:
    """Return an error with what to do, or which file it is about."""
    if isinstance(error, FileExistsError):
        return FileExistsError(f"{error.filename} exists: name another file, or add --force")
    if isinstance(error, OSError):
        return OSError(f"{error.filename or 'output'}: {error.strerror}")
    return error


def _report(out: Path, before: int, after: int) -> None:
    if out != STANDARD:
        typer.echo(f"wrote {out}: {after:,} bytes, from {before:,}")
