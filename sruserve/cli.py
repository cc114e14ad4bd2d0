"""The command line: serve, import, verify, inspect."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from sruserve import __version__

app = typer.Typer(
    name="sruserve",
    help="Serve trained recurrent models of the SRU family: streaming, stateful, exact.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_errors = Console(stderr=True, highlight=False)


class TaskName(StrEnum):
    """What a model is for."""

    CLASSIFY = "classify"
    GENERATE = "generate"
    ENCODE = "encode"


class FormatName(StrEnum):
    """Whose checkpoint it is; `auto` looks at the names of its tensors."""

    AUTO = "auto"
    SRU = "sru"


class DTypeName(StrEnum):
    """What to compute in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def main() -> None:
    """The entry point: mistakes of the caller are one line and exit code 1, Ctrl-C is 130."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


def _version(asked: bool) -> None:
    if asked:
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
            metavar="[FOLDER…]",
            help="Model folders; without any, those under SRUSERVE_MODELS, or the bundled ones.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (SRUSERVE_HOST).", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="TCP port (SRUSERVE_PORT).", show_default=False)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Server processes (SRUSERVE_WORKERS).", show_default=False)
    ] = None,
    dtype: Annotated[
        DTypeName | None,
        typer.Option(help="Compute dtype of all models (SRUSERVE_DTYPE).", show_default=False),
    ] = None,
) -> None:
    """Serve model folders over HTTP."""
    from sruserve.server import run
    from sruserve.server.settings import SettingsError, load_settings

    given: dict[str, Any] = {"host": host, "port": port, "workers": workers}
    given["dtype"] = dtype.value if dtype else None
    given = {name: value for name, value in given.items() if value is not None}
    if folders:
        given["model_folders"] = tuple(folders)
    try:
        settings = load_settings(**given)
    except SettingsError as error:
        _fail(error, code=2)
    raise typer.Exit(run.serve(settings))


@app.command()
def settings() -> None:
    """List every setting of the server: variable, default, meaning."""
    from sruserve.server.settings import Settings, variable_name

    for name, field in Settings.model_fields.items():
        typer.secho(
            f"{variable_name(name)}={'' if field.default is None else field.default}", bold=True
        )
        typer.echo(f"    {field.description}")


@app.command(
    "import",
    epilog="Example: sruserve import weights.pt my-model --task classify --options options.json "
    "--vocab tokenizer.json --labels labels.json",
)
def import_(
    weights: Annotated[Path, typer.Argument(help="A state dict: .pt or .safetensors.")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    task: Annotated[TaskName, typer.Option(help="What the model is for.")],
    format: Annotated[  # noqa: A002
        FormatName, typer.Option(help="Whose checkpoint it is.")
    ] = FormatName.AUTO,
    options: Annotated[
        Path | None,
        typer.Option(help="JSON object of the arguments that sru.SRU was made with."),
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(
            help="JSON list in id order (words, or byte values), or a tokenizer.json. Without it "
            "the model takes and returns ids."
        ),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="JSON list of the classes' names in id order.")
    ] = None,
) -> None:
    """Turn a checkpoint of the `sru` library (2.1.9 to 2.6.0) into a model folder.

    Nothing in the checkpoint is executed: a pickle of more than tensors is refused.
    """
    from sruserve.model.errors import ModelError
    from sruserve.model.folder import load_model
    from sruserve.model.importers.build import import_checkpoint

    del format  # one format so far, and its tensors' names tell it
    try:
        with _progress() as progress:
            bar = progress.add_task("", total=4)

            def step(name: str) -> None:
                progress.update(bar, description=name, advance=1)

            import_checkpoint(weights, out, task.value, options, vocab, labels, step)
            step("reading it back")
            model = load_model(out)
    except ModelError as error:
        _fail(error)
    typer.echo(f"wrote {out}: {model.parameters:,} parameters, digest {model.digest[:16]}…")
    typer.echo(f"serve it with: sruserve serve {out}")


@app.command()
def verify(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    case: Annotated[
        Path,
        typer.Argument(
            metavar="CASE.safetensors",
            help="Inputs x or tokens, and what the training library gave for them: h, logits or "
            "log_probs, c_n; optionally lengths and c_0.",
        ),
    ],
    tolerance: Annotated[float, typer.Option(help="Largest difference that is allowed.")] = 1e-5,
    splits: Annotated[int, typer.Option(min=0, help="Random splits to try.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    dtype: Annotated[
        DTypeName | None, typer.Option(help="Compute dtype; default: the model's own.")
    ] = None,
) -> None:
    """Compare a model with the library that trained it, whole and in random splits.

    Prints the largest difference and exits with 1 if it is beyond the tolerance.
    """
    from sruserve.model.errors import ModelError
    from sruserve.model.folder import load_model
    from sruserve.model.verify import Case, Difference, verify

    found: list[Difference] = []
    try:
        with _progress() as progress:
            loaded = load_model(model, dtype.value if dtype else None)
            runs = 1 + (splits if loaded.network.streams else 0)
            bar = progress.add_task("verifying", total=runs)
            for difference in verify(loaded, Case(case), splits, seed):
                if found and found[-1].run != difference.run:
                    progress.advance(bar)
                found.append(difference)
    except ModelError as error:
        _fail(error)
    worst = max(found, key=lambda difference: difference.largest)
    for name in dict.fromkeys(difference.tensor for difference in found):
        largest = max(d.largest for d in found if d.tensor == name)
        typer.echo(f"{name:<10} largest difference {largest:.3g}")
    agrees = worst.largest <= tolerance
    verdict = "agrees" if agrees else f"DIFFERS ({worst.tensor}, {worst.run})"
    typer.secho(
        f"{verdict}: largest difference {worst.largest:.3g}, tolerance {tolerance:g}, "
        f"{runs} run{'s' if runs > 1 else ''}",
        fg=typer.colors.GREEN if agrees else typer.colors.RED,
    )
    raise typer.Exit(0 if agrees else 1)


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    dtype: Annotated[
        DTypeName | None, typer.Option(help="Compute dtype; default: the model's own.")
    ] = None,
) -> None:
    """Print what a model is: sizes, parameters, bytes of state per stream, digest."""
    from sruserve.model.errors import ModelError
    from sruserve.model.folder import load_model
    from sruserve.model.inspect import facts

    try:
        for name, value in facts(load_model(model, dtype.value if dtype else None)).items():
            typer.echo(f"{name:<12} {value}")
    except ModelError as error:
        _fail(error)


def _fail(error: Exception, code: int = 1) -> NoReturn:
    _errors.print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
    raise typer.Exit(code)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _progress() -> Progress:
    """A bar on a terminal; nothing where the output goes to a file."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=_errors,
        transient=True,
        disable=not _errors.is_terminal,
    )
