"""The commands for models: import, inspect.

Paths are `readable=False`: errors of files that may not be read are our own lines.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sruserve.cli_memory import limited_memory
from sruserve.cli_shared import fail, find_model, progress_bar
from sruserve.cli_signals import cleaning_up
from sruserve.model.importers.formats import FILE_FORMATS, FORMATS, TRANSLATION_FORMATS
from sruserve.model.names import DType, ImportTask

if TYPE_CHECKING:
    from sruserve.model.folder import Model
    from sruserve.model.translation.folder import TranslationModel


FORMAT_NAMES = ("auto", *FORMATS, *FILE_FORMATS, *TRANSLATION_FORMATS)


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
ModelArgument = Annotated[
    Path,
    typer.Argument(
        readable=False,
        callback=find_model,
        help="A model folder, an ONNX file of one, or a bundled model's name.",
    ),
]
FolderArgument = Annotated[
    Path,
    typer.Argument(
        readable=False, callback=find_model, help="A model folder, or a bundled model's name."
    ),
]
DTypeOption = Annotated[
    DType | None,
    typer.Option(help="Compute dtype; default: the model's own. float16 runs on a GPU only."),
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
    task: Annotated[ImportTask, typer.Option(help="Task of the model.")],
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
    target_vocab: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="For task translate: the target's vocabulary, if --vocab is that of the source.",
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
    from sruserve.model.errors import ModelError, OptionError
    from sruserve.model.importers.build import import_checkpoint
    from sruserve.model.importers.translation.build import import_translation

    warnings: list[str] = []
    assumed: list[str] = []
    try:
        with cleaning_up(), progress_bar() as progress, limited_memory(weights):
            bar = progress.add_task("", total=3)

            def step(name: str) -> None:
                progress.update(bar, description=name, advance=1)

            model: Model | TranslationModel
            if task == "translate":
                if labels is not None:
                    raise OptionError(
                        "--labels is for classes and values, not for translations: leave it out"
                    )
                model = import_translation(
                    weights,
                    out,
                    options,
                    vocab,
                    target_vocab,
                    format,
                    rename or (),
                    step,
                    lowercase,
                    warnings.append,
                    assumed.append,
                )
            else:
                if target_vocab is not None:
                    raise OptionError(
                        "--target-vocab is for --task translate: leave it out, or add that"
                    )
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


def inspect(
    model: ModelArgument,
    device: DeviceOption = "auto",
    dtype: DTypeOption = None,
) -> None:
    """Print a model's network, bytes of state per stream, digest, device and exactness."""
    from sruserve.model.errors import ModelError
    from sruserve.model.inspect import facts
    from sruserve.model.translation.folder import is_translation_folder, load_translation
    from sruserve.model.translation.inspect import translation_facts

    try:
        if is_translation_folder(model):
            description = translation_facts(load_translation(model))
        else:
            description = facts(load(model, device, dtype))
        for name, value in description.items():
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
