"""The command that answers the lines of a file by a model: run."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sruserve.cli_shared import STANDARD, fail, progress_bar, reading
from sruserve.cli_signals import cleaning_up
from sruserve.model.names import DType

if TYPE_CHECKING:
    from sruserve.api.local_model import LocalModel
    from sruserve.batch.run import Run


class InputFormat(StrEnum):
    """The choice of a format."""

    AUTO = "auto"
    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"


class OtherTask(StrEnum):
    """Tasks beside the one that a model's config names."""

    SCORE = "score"
    EMBED = "embed"


def run(
    model: Annotated[str, typer.Argument(help="A model folder, or a bundled model's name.")],
    input: Annotated[  # noqa: A002
        str, typer.Argument(help="A file of texts or requests; -: standard input.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file to write; -: standard output.")
    ] = "-",
    task: Annotated[
        OtherTask | None,
        typer.Option(
            help="score: the likelihood of texts, by a language model. embed: their vectors. "
            "Default: the model's own task."
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        InputFormat,
        typer.Option(
            help="lines: a text on each. jsonl: a text, a list of ids, an object with the fields "
            "of a request, or a line of OpenAI's batches. csv: with a head. auto: by the file's "
            "name, *.jsonl or *.csv, else lines."
        ),
    ] = InputFormat.AUTO,
    column: Annotated[
        str | None,
        typer.Option(
            help="Column of the CSV, or field of the JSON objects, with the text. Default: a "
            "column text, input or prompt, or the only one."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="Most tokens to generate for each line.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of generation; 0 takes the likeliest token.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes each generated text.")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help='Any other field of the requests, such as steps_ahead=24 or stop=["\\n"]; a line '
            "may set it itself. May be repeated.",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Replace the output instead of continuing it.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:N", help="Device to compute on.", show_default="auto"
        ),
    ] = None,
    dtype: Annotated[
        DType | None, typer.Option(help="Compute dtype; default: the model's own.")
    ] = None,
) -> None:
    """Answer every line of a file, without a server.

    Writes a line of JSON for each, in their order, with the number of its line; for lines of
    OpenAI's batches, in OpenAI's shape. Lines that are wrong go to OUTPUT.errors, with the reason;
    the exit code is then 1. Killed and started again, it continues where it was.
    """
    from sruserve.batch.errors import BatchError
    from sruserve.batch.process import own_process
    from sruserve.model.errors import ModelError
    from sruserve.server.errors import ServeError

    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    options = {name: value for name, value in options.items() if value is not None}
    options |= dict(map(_field, field or ()))
    chosen = _format(format, input)
    try:
        with cleaning_up(), _loaded(model, device, dtype) as local, own_process():
            done, wrong = _answer(local, input, output, task, chosen, column, options, restart)
    except (BatchError, ModelError, ServeError) as error:
        fail(error)
    except OSError as error:
        fail(OSError(f"{error.filename or 'output'}: {error.strerror}"))
    if output != str(STANDARD):
        typer.echo(f"wrote {output}: up to line {done:,}")
        if wrong:
            typer.secho(f"{wrong:,} wrong: see {output}.errors", fg=typer.colors.YELLOW, err=True)
    raise typer.Exit(1 if wrong else 0)


def _answer(
    local: "LocalModel",
    input_: str,
    output: str,
    task: OtherTask | None,
    format_: InputFormat,
    column: str | None,
    options: dict[str, Any],
    restart: bool,
) -> tuple[int, int]:
    """Run to the end of the input; returns its lines, and how many are wrong."""
    from sruserve.batch.entries import EntryReader
    from sruserve.batch.files import check_output
    from sruserve.batch.opening import open_output
    from sruserve.batch.output import StandardOutput
    from sruserve.batch.records import Format, records
    from sruserve.batch.run import Run, skip
    from sruserve.batch.source import Source

    model = local.served.model
    name = task.value if task else model.config.task
    made_of = {
        "model": model.digest,
        "dtype": model.dtype,
        "task": name,
        "format": format_.value,
        "column": column or "",
        "options": json.dumps(options, sort_keys=True),
    }
    reader = EntryReader(name, local.served.name, options)
    with reading(Path(input_)) as opened, progress_bar() as progress:
        total = None if input_ == str(STANDARD) else Path(input_).stat().st_size
        bar = progress.add_task("answering", total=total)
        source = Source(opened)
        lines = records(source, Format(format_.value), column)

        def advance(done: int) -> None:
            progress.update(bar, completed=done)

        if output == str(STANDARD):
            sink = StandardOutput(sys.stdout.buffer, sys.stderr.buffer)
            _finish(local, Run(local, source, lines, reader, sink, made_of, None, advance))
            return source.line, sink.wrong
        check_output(Path(output), opened)
        written, journal, before = open_output(Path(output), made_of, restart)
        try:
            rest = skip(before, written, source, lines)
            _finish(local, Run(local, source, rest, reader, written, made_of, journal, advance))
        finally:
            written.close()
        return source.line, written.wrong


def _finish(local: "LocalModel", run: "Run") -> None:
    """Run to the end. After Ctrl-C, return only when no thread uses the files any more."""
    try:
        local.loop.run(run())
    finally:
        local.loop.run(run.ended())


@contextmanager
def _loaded(model: str, device: str | None, dtype: str | None) -> Iterator["LocalModel"]:
    from sruserve.api.local_model import LocalModel
    from sruserve.api.local_settings import find_folder, local_settings

    # The lines of a file may be other people's, and one of them must not take for ever.
    limits = ("max_new_tokens",)
    settings = local_settings(find_folder(model), device, dtype, servers_limits=limits)
    local = LocalModel.load(settings)
    try:
        yield local
    finally:
        local.loop.run(local.stop())


def _format(chosen: InputFormat, input_: str) -> InputFormat:
    if chosen is not InputFormat.AUTO:
        return chosen
    suffixes = {".jsonl": InputFormat.JSONL, ".ndjson": InputFormat.JSONL, ".csv": InputFormat.CSV}
    return suffixes.get(Path(input_).suffix.lower(), InputFormat.LINES)


def _field(text: str) -> tuple[str, Any]:
    """Return the name and value of NAME=VALUE; what is no JSON is a text."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--field")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
