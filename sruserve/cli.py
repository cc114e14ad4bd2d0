"""The command line: the program, `serve` and `settings`; `cli_models` has the other commands."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

import typer

from sruserve import __version__, cli_export
from sruserve.cli_check import check
from sruserve.cli_compress import compress, decompress
from sruserve.cli_models import import_, inspect
from sruserve.cli_run import run as run_lines
from sruserve.cli_shared import fail, show_error
from sruserve.cli_verify import verify
from sruserve.model.names import DType

app = typer.Typer(
    name="sruserve",
    help="Serve trained recurrent models: streaming, stateful, exact.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


# What a file, a terminal or a pipe that takes no more output raises.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


def main() -> None:
    """Run the program. A caller's mistake is one line and exit code 1; Ctrl-C is exit code 130."""
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:  # it is closed
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _end_without_output(error)


def _end_without_output(error: OSError) -> NoReturn:
    """End with exit code 1 because the output cannot be written; a reader that left needs no word.

    What waits to be written is dropped, or the interpreter would try again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:
        show_error(OSError(f"the output cannot be written: {error.strerror}"))
    sys.exit(1)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"sruserve {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command(
    epilog="Every other setting is an environment variable, SRUSERVE_…: `sruserve settings` lists "
    "them. Example: SRUSERVE_PORT=9000 sruserve serve my-model"
)
def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[MODEL…]",
            readable=False,  # our own message says what to do
            help="Model folders, or bundled models' names; default: the folders under "
            "SRUSERVE_MODELS, or all bundled models.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (SRUSERVE_HOST).", show_default=False)
    ] = None,
    port: Annotated[
        str | None,
        typer.Option(metavar="0…65535", help="TCP port (SRUSERVE_PORT).", show_default=False),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="1…256", help="Server processes (SRUSERVE_WORKERS).", show_default=False
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="auto|cpu|cuda|cuda:N",
            help="Device to compute on (SRUSERVE_DEVICE); auto: the first GPU if the kernels can "
            "run on it, else the CPU.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(get_args(DType)),
            help="Compute dtype of all models (SRUSERVE_DTYPE, which can also set one for each "
            "model); float16 runs on a GPU only.",
            show_default=False,
        ),
    ] = None,
    fast: Annotated[
        bool | None,
        typer.Option(
            "--fast/--exact",
            help="On a GPU, kernels chosen by the number of rows: faster, but splits, batches, "
            "restored states and seeds agree to rounding, not bit for bit (SRUSERVE_FAST).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve models over HTTP, on the first GPU, or on the CPU without one."""
    from sruserve.server import run
    from sruserve.server.settings import SettingsError, load_settings

    overrides: dict[str, Any] = {"host": host, "port": port, "workers": workers}
    overrides |= {"device": device, "dtype": dtype, "fast": fast}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    if folders:
        overrides["model_folders"] = tuple(folders)
    try:
        settings = load_settings(**overrides)
    except SettingsError as error:
        fail(error, code=2)
    raise typer.Exit(run.serve(settings))


@app.command()
def settings() -> None:
    """List every setting of the server: variable, value, meaning and allowed values.

    The value is the default, unless the environment sets another: then both are shown.
    """
    from sruserve.server.setting_table import changed_values, setting_rows
    from sruserve.server.settings import SettingsError, load_settings

    problem, changed = None, {}
    try:
        changed = changed_values(load_settings())
    except SettingsError as error:  # the list helps to correct it
        problem = error
    for row in setting_rows():
        value = changed.get(row.variable, row.default)
        typer.secho(f"{row.variable}={value}", bold=True, nl=row.variable not in changed)
        if row.variable in changed:
            typer.echo(f"   <- set here; the default is {row.default or 'unset'}")
        typer.echo(f"    {row.meaning}{f' ({row.allowed})' if row.allowed else ''}")
    if problem is not None:
        fail(problem, code=2)


app.command(
    "import",
    epilog="Example: sruserve import weights.pt my-model --task classify --options options.json "
    "--vocab tokenizer.json --labels labels.json",
)(import_)
app.command()(verify)
app.command()(inspect)
app.command(epilog="Example: sruserve check http://127.0.0.1:8000 --model question-type")(check)
app.command("run", epilog="Example: sruserve run question-type questions.txt -o labels.jsonl")(
    run_lines
)
app.command(epilog="Example: sruserve compress letters.txt --model sruserve/demo/shakespeare")(
    compress
)
app.command(epilog="Example: sruserve decompress letters.txt.sruz -o -")(decompress)
app.add_typer(cli_export.app)
