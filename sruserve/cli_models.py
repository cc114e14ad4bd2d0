"""The commands for models: import, verify, inspect."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sruserve.cli_shared import fail, progress_bar
from sruserve.model.importers.origins import ORIGINS
from sruserve.model.names import DType, Task

if TYPE_CHECKING:
    from sruserve.model.folder import Model


FORMATS = ("auto", *ORIGINS)


def _a_format(name: str) -> str:
    if name not in FORMATS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(FORMATS)}")
    return name


DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N",
        help="Where to compute; auto: the first GPU if the kernels can run on it, else the CPU.",
    ),
]
DTypeOption = Annotated[
    DType | None,
    typer.Option(help="Compute dtype; default: the model's own. float16 runs on a GPU only."),
]


def import_(
    weights: Annotated[Path, typer.Argument(help="A state dict: .pt or .safetensors.")],
    out: Annotated[
        Path, typer.Argument(help="The model folder to write; a model folder there is replaced.")
    ],
    task: Annotated[Task, typer.Option(help="What the model is for.")],
    format: Annotated[  # noqa: A002
        str,
        typer.Option(
            metavar="|".join(FORMATS),
            callback=_a_format,
            help="Whose checkpoint it is: auto wants to know it by the names of its tensors; any "
            "other is taken at its word, and what is missing is said.",
        ),
    ] = "auto",
    options: Annotated[
        Path | None,
        typer.Option(
            help="JSON object of the arguments that the network was made with, for what its "
            "weights do not tell."
        ),
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
    """Turn a checkpoint of the library that trained it into a model folder.

    Nothing in the checkpoint is executed: a pickle of more than tensors is refused.
    """
    from sruserve.model.errors import ModelError
    from sruserve.model.importers.build import import_checkpoint

    try:
        with progress_bar() as progress:
            bar = progress.add_task("", total=3)

            def step(name: str) -> None:
                progress.update(bar, description=name, advance=1)

            model = import_checkpoint(weights, out, task, options, vocab, labels, format, step)
    except ModelError as error:
        fail(error)
    typer.echo(f"wrote {out}: {model.parameters:,} parameters, digest {model.digest[:16]}…")
    typer.echo(f"serve it with: sruserve serve {out}")


def verify(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    case: Annotated[
        Path,
        typer.Argument(
            metavar="CASE.safetensors",
            help="Inputs x or tokens, and what the training library gave for them: h, logits or "
            "log_probs, c_n, h_n; optionally lengths and c_0, h_0.",
        ),
    ],
    tolerance: Annotated[float, typer.Option(help="Largest difference that is allowed.")] = 1e-5,
    splits: Annotated[int, typer.Option(min=0, help="Random splits to try.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    device: DeviceOption = "auto",
    dtype: DTypeOption = None,
) -> None:
    """Compare a model with the library that trained it, whole and in random splits.

    Prints the largest difference and exits with 1 if it is beyond the tolerance. A 16-bit dtype
    needs a larger one, such as 0.05.
    """
    from sruserve.model.cases import Case
    from sruserve.model.errors import ModelError
    from sruserve.model.verify import Difference, verify

    found: list[Difference] = []
    try:
        with progress_bar() as progress:
            loaded = _load(model, device, dtype)
            runs = 1 + (splits if loaded.network.streams else 0)
            bar = progress.add_task("verifying", total=runs)
            for difference in verify(loaded, Case(case), splits, seed):
                if found and found[-1].run != difference.run:
                    progress.advance(bar)
                found.append(difference)
    except ModelError as error:
        fail(error)
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


def inspect(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    device: DeviceOption = "auto",
    dtype: DTypeOption = None,
) -> None:
    """Print what a model is, bytes of state per stream, digest, where it runs and how exactly."""
    from sruserve.model.errors import ModelError
    from sruserve.model.inspect import facts

    try:
        for name, value in facts(_load(model, device, dtype)).items():
            typer.echo(f"{name:<12} {value}")
    except ModelError as error:
        fail(error)


def _load(path: Path, device: str, dtype: DType | None) -> "Model":
    """A model on the device that was asked for, or the end of the command."""
    from sruserve.kernels.devices import DeviceError, resolve_device, use_device
    from sruserve.kernels.memory import is_out_of_memory
    from sruserve.model.folder import load_model

    try:
        resolved = resolve_device(device)
    except DeviceError as error:
        fail(error)
    try:
        use_device(resolved)
        return load_model(path, dtype, resolved)
    except (RuntimeError, MemoryError) as error:  # full, or a GPU that another process has alone
        if resolved.type == "cpu" and not is_out_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        fail(RuntimeError(f"cannot load {path} on {resolved}: {first}"))
