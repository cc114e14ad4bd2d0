"""The commands for models: import, verify, inspect.

Paths are `readable=False`: errors of files that may not be read are our own lines.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sruserve.cli_memory import limited_memory
from sruserve.cli_shared import fail, progress_bar
from sruserve.cli_signals import cleaning_up
from sruserve.model.importers.formats import FILE_FORMATS, FORMATS
from sruserve.model.names import DType, Task

if TYPE_CHECKING:
    from sruserve.model.folder import Model
    from sruserve.model.verification.verify import Difference
    from sruserve.model.verification.verify_texts import Mismatch


_MAX_MISMATCHES = 20  # shown
FORMAT_NAMES = ("auto", *FORMATS, *FILE_FORMATS)


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


ModelArgument = Annotated[
    Path,
    typer.Argument(readable=False, help="A model folder, or a file of `sruserve export onnx`."),
]


def import_(
    weights: Annotated[
        Path,
        typer.Argument(
            readable=False,
            help="A state dict, .pt or .safetensors; a model of Keras, .keras or .h5; .onnx; or a "
            "checkpoint of TensorFlow, its folder or a file.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            readable=False, help="The model folder to write; replaces an existing model folder."
        ),
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
            readable=False,
            help="JSON object of the constructor arguments of the network, for everything that "
            "the weights do not show.",
        ),
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="JSON list of words, characters or byte values in id order, JSON object of words "
            "and their ids, or a tokenizer.json. Without it, the model takes and returns ids.",
        ),
    ] = None,
    lowercase: Annotated[
        bool,
        typer.Option(
            "--lowercase", help="Put texts into lower case, as the training did, before all else."
        ),
    ] = False,
    labels: Annotated[
        Path | None,
        typer.Option(readable=False, help="JSON list of the classes' names in id order."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW",
            help="Rename a tensor, or a prefix of tensors' names, before the format is recognised. "
            "May be repeated.",
        ),
    ] = None,
) -> None:
    """Convert a checkpoint of the library that trained a model to a model folder.

    Never executes code in the checkpoint: refuses a pickle that holds more than tensors.
    """
    from sruserve.kernels.oom import is_out_of_memory
    from sruserve.model.errors import ModelError
    from sruserve.model.importers.build import import_checkpoint

    warnings: list[str] = []
    assumed: list[str] = []
    try:
        with cleaning_up(), progress_bar() as progress, limited_memory(weights):
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
                rename or (),
                step,
                lowercase,
                warnings.append,
                assumed.append,
            )
    except ModelError as error:
        fail(error)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fail(MemoryError(f"{weights} takes far more memory than a file of its size should"))
    for warning in warnings:
        typer.secho(f"warning: {warning}", fg=typer.colors.YELLOW, err=True)
    if assumed:
        typer.echo(f"assumed: {', '.join(assumed)}")
    typer.echo(f"wrote {out}: {model.parameters:,} parameters, digest {model.digest[:16]}…")
    typer.echo(f"serve it with: sruserve serve {out}")


def verify(
    model: Annotated[
        Path, typer.Argument(readable=False, help="A model folder, or an ONNX file of one.")
    ],
    case: Annotated[
        Path,
        typer.Argument(
            readable=False,
            metavar="CASE.safetensors|CASE.json",
            help="Inputs and the training library's results for them. Tensors: x or tokens, and h, "
            "logits, probabilities, values, log_probs, c_n, h_n; optionally lengths and c_0, h_0. "
            "JSON: texts with their label, probabilities, values or ids.",
        ),
    ],
    tolerance: Annotated[float, typer.Option(help="Largest allowed difference.")] = 1e-5,
    splits: Annotated[int, typer.Option(min=0, help="Random splits to try.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    device: DeviceOption = "auto",
    dtype: DTypeOption = None,
) -> None:
    """Compare a model with the library that trained it, on whole inputs and random splits.

    Prints the largest difference, and which parts of the model the case does not check. Exits with
    1 if a difference exceeds the tolerance, or a label or id differs. A 16-bit dtype needs a larger
    tolerance, such as 0.05.
    """
    from sruserve.model.errors import ModelError
    from sruserve.model.verification.cases import Case
    from sruserve.model.verification.coverage import coverage
    from sruserve.model.verification.text_cases import TextCase
    from sruserve.model.verification.verify import Difference, verify
    from sruserve.model.verification.verify_texts import Mismatch, verify_texts

    differences: list[Difference] = []
    mismatches: list[Mismatch] = []
    try:
        with progress_bar() as progress:
            loaded = load(model, device, dtype)
            runs = 1 + (splits if loaded.network.supports_streaming else 0)
            progress.add_task("verifying", total=None)
            opened: Case | TextCase
            if case.suffix == ".json":
                opened = TextCase(case)
                for finding in verify_texts(loaded, opened, splits, seed):
                    if isinstance(finding, Mismatch):
                        mismatches.append(finding)
                    else:
                        differences.append(finding)
            else:
                opened = Case(case)
                differences += verify(loaded, opened, splits, seed)
            checked, unchecked = coverage(loaded, opened)
    except ModelError as error:
        fail(error)
    _show(differences, mismatches)
    typer.echo(f"checked: {', '.join(checked)}")
    if unchecked:
        typer.secho(f"not checked: {', '.join(unchecked)}", fg=typer.colors.YELLOW)
    agrees = not mismatches and all(d.largest <= tolerance for d in differences)
    count = f"{runs} run{'s' if runs > 1 else ''}"
    if mismatches:
        verdict = (
            f"DIFFERS: {len(mismatches)} mismatch{'es' if len(mismatches) > 1 else ''}, {count}"
        )
    else:
        worst = max(differences, key=lambda difference: difference.largest)
        name = "agrees" if agrees else f"DIFFERS ({worst.tensor}, {worst.run})"
        verdict = (
            f"{name}: largest difference {worst.largest:.3g}, tolerance {tolerance:g}, {count}"
        )
    typer.secho(verdict, fg=typer.colors.GREEN if agrees else typer.colors.RED)
    raise typer.Exit(0 if agrees else 1)


def _show(differences: "Sequence[Difference]", mismatches: "Sequence[Mismatch]") -> None:
    """Print the largest difference of each tensor, and the first mismatches."""
    from sruserve.model.errors import printable

    for name in dict.fromkeys(difference.tensor for difference in differences):
        largest = max(d.largest for d in differences if d.tensor == name)
        if name in ("ids", "label"):
            same = sum(d.tensor == name for d in differences)
            total = same + sum(m.tensor == name for m in mismatches)
            typer.echo(f"{name:<10} {same} of {total} equal")
        else:
            typer.echo(f"{name:<10} largest difference {largest:.3g}")
    for wrong in mismatches[:_MAX_MISMATCHES]:
        line = (
            f"{wrong.tensor} of {wrong.text} ({wrong.run}): {wrong.ours}; expected {wrong.theirs}"
        )
        typer.echo(printable(line))
    if len(mismatches) > _MAX_MISMATCHES:
        typer.echo(f"and {len(mismatches) - _MAX_MISMATCHES} more")


def inspect(
    model: Annotated[
        Path, typer.Argument(readable=False, help="A model folder, or an ONNX file of one.")
    ],
    device: DeviceOption = "auto",
    dtype: DTypeOption = None,
) -> None:
    """Print a model's network, bytes of state per stream, digest, device and exactness."""
    from sruserve.model.errors import ModelError
    from sruserve.model.inspect import facts

    try:
        for name, value in facts(load(model, device, dtype)).items():
            typer.echo(f"{name:<12} {value}")
    except ModelError as error:
        fail(error)


def load(path: Path, device: str, dtype: DType | None) -> "Model":
    """Load a model on a device, or end the command with an error."""
    from sruserve.export.runtime.load import load_any, read_any_config
    from sruserve.kernels.devices import DeviceError, resolve_device, use_device
    from sruserve.kernels.oom import is_out_of_memory
    from sruserve.model.placement import preferred_device

    try:
        resolved = resolve_device(device)
    except DeviceError as error:
        fail(error)
    if resolved.type != "cpu":
        resolved = preferred_device(read_any_config(path), dtype, device, resolved)
    try:
        use_device(resolved)
        return load_any(path, dtype, resolved)
    except (RuntimeError, MemoryError) as error:  # out of memory, or another process owns the GPU
        if resolved.type == "cpu" and not is_out_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        fail(RuntimeError(f"cannot load {path} on {resolved}: {first}"))
