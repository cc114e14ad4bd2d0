"""The command that writes a model with smaller weights: export quantize."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sruserve.cli_models import FolderArgument
from sruserve.cli_shared import fail, progress_bar
from sruserve.cli_signals import cleaning_up

if TYPE_CHECKING:
    from sruserve.export.quantize.compare import Figures
    from sruserve.model.folder import Model


class SmallWeights(StrEnum):
    """The choice of smaller weights."""

    INT8 = "int8"
    BF16 = "bf16"


def quantize(
    model: FolderArgument,
    out: Annotated[
        Path,
        typer.Argument(
            readable=False, help="The model folder to write; replaces an existing model folder."
        ),
    ],
    weights: Annotated[
        SmallWeights,
        typer.Option(
            help="int8: large weights in a quarter of float32's bytes, multiplied in integers on a "
            "CPU. bf16: in half of them, and the model computes in bfloat16.",
        ),
    ] = SmallWeights.INT8,
    text: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="A held-out text, UTF-8, for the bits per character of a language model before "
            "and after.",
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE.jsonl",
            help='Held-out texts, one {"text": …, "label": …} on a line, for the labels of a '
            "classifier that change; label is optional.",
        ),
    ] = None,
) -> None:
    """Write a model folder with smaller weights, and print what that costs.

    Prints bytes, speed and, with held-out data, accuracy before and after. Results of the new
    folder have the same guarantees as those of any other: no bit depends on batches or splits.
    Speeds are those of this machine's CPU: measure on an idle one.
    """
    from sruserve.export.quantize.compare import compare
    from sruserve.export.quantize.quantize import quantize
    from sruserve.export.quantize.texts import HeldOut
    from sruserve.model.errors import ModelError

    held_out = HeldOut(text, texts)
    try:
        with cleaning_up(), progress_bar() as progress:
            bar = progress.add_task("", total=None)

            def step(name: str) -> None:
                progress.update(bar, description=name)

            before, after = quantize(model, out, weights.value, held_out, step)
            old, new = compare(before, after, held_out, step)
    except ModelError as error:
        fail(error)
    typer.echo(f"wrote {out}: {after.parameters:,} parameters, digest {after.digest[:16]}…")
    for row in _rows(before, held_out.labelled_count, old, new):
        typer.echo("{:<28} {:>14} {:>14}  {}".format(*row).rstrip())


def _rows(
    model: "Model", labelled: int, old: "Figures", new: "Figures"
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of a table of what a model reached before and after."""
    unit = "characters/s" if model.config.task == "generate" and model.codec else "steps/s"
    yield "", "before", "after", ""
    smaller = f"{old.file_bytes / new.file_bytes:.2f} times smaller"
    yield "bytes of weights", f"{old.file_bytes:,}", f"{new.file_bytes:,}", smaller
    if old.bits_per_character is not None and new.bits_per_character is not None:
        more = new.bits_per_character - old.bits_per_character
        bits = f"{old.bits_per_character:.4f}", f"{new.bits_per_character:.4f}"
        yield "bits per character", *bits, f"{more:+.4f}"
    if old.labels:
        changed = sum(a != b for a, b in zip(old.labels, new.labels, strict=True))
        yield "labels changed", "", f"{changed:,}", f"of {len(old.labels):,}"
    if labelled:
        yield "labels right", f"{old.correct:,}", f"{new.correct:,}", f"of {labelled:,}"
    for name, first, second in (
        ("whole inputs", old.reading, new.reading),
        ("one stream", old.decoding, new.decoding),
    ):
        if first:
            faster = f"{second / first:.2f} times as fast"
            yield f"{name}, {unit}", f"{first:,.0f}", f"{second:,.0f}", faster
