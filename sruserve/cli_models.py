"""The commands for models: import, verify, inspect."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sruserve.cli_shared import fail, progress_bar
from sruserve.model.importers.formats import FORMATS
from sruserve.model.names import DType, Task

if TYPE_CHECKING:
    from sruserve.model.folder import Model


FORMAT_NAMES = ("auto", *FORMATS)


def _check_format(name: str) -> str:
    if name not in FORMAT_NAMES:
        raise typer.BadParameter(f"{name!r} is unknown; use one of {', '.join(FORMAT_NAMES)}")
    return name


DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N",
        help="Device to compute on; auto: the first GPU if the kernels run there, else the CPU.",
    ),
]
DTypeOption = Annotated[
    DType | None,
    typer.Option(help="Compute dtype; default: the model's own. float16 runs on a GPU only."),
]


def import_(
    weights: Annotated[Path, typer.Argument(help="A state dict: .pt or .safetensors.")],
    out: Annotated[
        Path, typer.Argument(help="The model folder to write; replaces an existing model folder.")
    ],
    task: Annotated[Task, typer.Option(help="Task of the model.")],
    format: Annotated[  # noqa: A002
        str,
        typer.Option(
            metavar="|".join(FORMAT_NAMES),
            callback=_check_format,
            help="Format of the checkpoint. auto recognises it by the tensors' names; with any "
            "other format, the error names the missing tensors.",
        ),
    ] = "auto",
    options: Annotated[
        Path | None,
        typer.Option(
            help="JSON object of the constructor arguments of the network, for everything that "
            "the weights do not show."
        ),
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(
            help="JSON list of words, characters or byte values in id order, JSON object of words "
            "and their ids, or a tokenizer.json. Without it, the model takes and returns ids."
        ),
    ] = None,
    lowercase: Annotated[
        bool,
        typer.Option(
            "--lowercase", help="Put texts into lower case, as the training did, before all else."
        ),
    ] = False,
    labels: Annotated[
        Path | None, typer.Option(help="JSON list of the classes' names in id order.")
    ] = None,
) -> None:
    """Convert a checkpoint of the library that trained a model to a model folder.

    Never executes code in the checkpoint: refuses a pickle that holds more than tensors.
    """
    from sruserve.model.errors import ModelError
    from sruserve.model.importers.build import import_checkpoint

    warnings: list[str] = []
    try:
        with progress_bar() as progress:
            bar = progress.add_task("", total=3)

            def step(name: str) -> None:
                progress.update(bar, description=name, advance=1)

            model = import_checkpoint(
                weights,
                out,
                task,
                options,
                vocab,
                labels,
                format,
                step,
                lowercase,
                warnings.append,
            )
    except ModelError as error:
        fail(error)
    for warning in warnings:
        typer.secho(f"warning: {warning}", fg=typer.colors.YELLOW, err=True)
    typer.echo(f"wrote {out}: {model.parameters:,} parameters, digest {model.digest[:16]}…")
    typer.echo(f"serve it with: sruserve serve {out}")


def verify(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    case: Annotated[
        Path,
        typer.Argument(
            metavar="CASE.safetensors",
            help="Inputs x or tokens, and the training library's results for them: h, logits or "
            "log_probs, c_n, h_n; optionally lengths and c_0, h_0.",
        ),
    ],
    tolerance: Annotated[float, typer.Option(help="Largest allowed difference.")] = 1e-5,
    splits: Annotated[int, typer.Option(min=0, help="Random splits to try.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    device: DeviceOption = "auto",
    dtype: DTypeOption = None,
) -> None:
    """Compare a model with the library that trained it, on whole inputs and random splits.

    Prints the largest difference, and exits with 1 if it exceeds the tolerance. A 16-bit dtype
    needs a larger tolerance, such as 0.05.
    """
    from sruserve.model.cases import Case
    from sruserve.model.errors import ModelError
    from sruserve.model.verify import Difference, verify

    differences: list[Difference] = []
    try:
        with progress_bar() as progress:
            loaded = _load(model, device, dtype)
            runs = 1 + (splits if loaded.network.supports_streaming else 0)
            bar = progress.add_task("verifying", total=runs)
            for difference in verify(loaded, Case(case), splits, seed):
                if differences and differences[-1].run != difference.run:
                    progress.advance(bar)
                differences.append(difference)
    except ModelError as error:
        fail(error)
    worst = max(differences, key=lambda difference: difference.largest)
    for name in dict.fromkeys(difference.tensor for difference in differences):
        largest = max(d.largest for d in differences if d.tensor == name)
        typer.echo(f"{name:<10} largest difference {largest:.3g}")
    agrees = worst.largest <= tolerance
    verdict = "agrees" if agrees else f"DIFFERS ({worst.tensor}, {worst.run})"
    typer.secho(
        f"{verdict}: largest difference {worst.largest:.3g}, tolerance {tolerance:g}, "
        f"{runs} run{'s' if runs > 1 else ''}",
        fg=typer.colors.GREEN if agrees else typer.colors.RED,
    )
    raise typer.Exit(0 if agrees else 1)


def inspect(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    device: DeviceOption = "auto",
    dtype: DTypeOption = None,
) -> None:
    """Print a model's network, bytes of state per stream, digest, device and exactness."""
    from sruserve.model.errors import ModelError
    from sruserve.model.inspect import facts

    try:
        for name, value in facts(_load(model, device, dtype)).items():
            typer.echo(f"{name:<12} {value}")
    except ModelError as error:
        fail(error)


def _load(path: Path, device: str, dtype: DType | None) -> "Model":
    """Load a model on a device, or end the command with an error."""
    from sruserve.kernels.devices import DeviceError, resolve_device, use_device
    from sruserve.kernels.oom import is_out_of_memory
    from sruserve.model.folder import load_model

    try:
        resolved = resolve_device(device)
    except DeviceError as error:
        fail(error)
    try:
        use_device(resolved)
        return load_model(path, dtype, resolved)
    except (RuntimeError, MemoryError) as error:  # out of memory, or another process owns the GPU
        if resolved.type == "cpu" and not is_out_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        fail(RuntimeError(f"cannot load {path} on {resolved}: {first}"))
