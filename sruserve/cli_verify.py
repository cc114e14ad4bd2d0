"""The command that compares a model with the library that trained it: verify."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sruserve.cli_models import DeviceOption, DTypeOption, ModelArgument, load
from sruserve.cli_shared import fail, progress_bar

if TYPE_CHECKING:
    from sruserve.model.verification.verify import Difference
    from sruserve.model.verification.verify_texts import Mismatch

_MAX_MISMATCHES = 20  # shown


def verify(
    model: ModelArgument,
    case: Annotated[
        Path,
        typer.Argument(
            readable=False,
            metavar="CASE.safetensors|CASE.json",
            help="Inputs and the training library's results for them. Tensors: x or tokens, and h, "
            "logits, probabilities, values, log_probs, c_n, h_n; optionally lengths and c_0, h_0. "
            "JSON: texts with their label, probabilities, values or ids. Of a translation system: "
            "tensors N.source, N.target, and N.log_probs or N.attention.",
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
    from sruserve.model.translation.folder import is_translation_folder
    from sruserve.model.verification.cases import Case
    from sruserve.model.verification.coverage import coverage
    from sruserve.model.verification.text_cases import TextCase
    from sruserve.model.verification.verify import Difference, verify
    from sruserve.model.verification.verify_texts import Mismatch, verify_texts

    if is_translation_folder(model):
        _verify_translation(model, case, tolerance)
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
    _end(differences, mismatches, tolerance, runs)


def _verify_translation(path: Path, case: Path, tolerance: float) -> NoReturn:
    """Compare a translation system, each pair alone and all together."""
    from sruserve.model.errors import ModelError
    from sruserve.model.translation.folder import load_translation
    from sruserve.model.translation.verify import read_pairs, verify_translation

    try:
        with progress_bar() as progress:
            loaded = load_translation(path)
            progress.add_task("verifying", total=None)
            differences = list(verify_translation(loaded, read_pairs(case)))
    except ModelError as error:
        fail(error)
    _show(differences, [])
    typer.echo(f"checked: {', '.join(dict.fromkeys(d.tensor for d in differences))}")
    _end(differences, [], tolerance, 2)


def _end(
    differences: "Sequence[Difference]",
    mismatches: "Sequence[Mismatch]",
    tolerance: float,
    runs: int,
) -> NoReturn:
    """Print the verdict, and exit with it."""
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
