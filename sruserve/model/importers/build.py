"""From a checkpoint and what the user says of it to a model folder."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.config import LABELLED, ModelConfig, architecture, explain
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.folder import Model, save_model
from sruserve.model.heads import HeadConfig
from sruserve.model.importers.checkpoint import read_checkpoint
from sruserve.model.importers.origin import Imported
from sruserve.model.importers.origins import ORIGINS, origin
from sruserve.model.importers.tensors import matrix_of
from sruserve.model.importers.vocabulary import is_string_list, read_json, vocabulary
from sruserve.model.names import Task

_HEAD_OPTIONS = ("pooling", "combine")  # ours: no library's constructor knows them


def import_checkpoint(
    weights: Path,
    out: Path,
    task: Task,
    options: Path | None = None,
    vocab: Path | None = None,
    labels: Path | None = None,
    format: str = "auto",  # noqa: A002
    progress: Callable[[str], None] = lambda _: None,
) -> Model:
    """Write the model folder `out` from a checkpoint, load it back and return it.

    options: JSON object of the constructor's arguments, and `pooling` and `combine` of a head.
    vocab: JSON list of words or byte values in id order, or a tokenizer.json. labels: JSON list
    in id order.
    format: the origin of the weights; "auto" wants to know it by their names.
    progress: called with each step's name.
    """
    progress("reading the checkpoint")
    tensors = read_checkpoint(weights)
    name = recognise(tensors) if format == "auto" else format
    given = None if options is None else _read_object(options)
    head = {key: given.pop(key) for key in _HEAD_OPTIONS if given and key in given}
    found = origin(name).read(tensors, given, task)
    progress("checking tensors and vocabulary")
    config = describe(task, found, head, labels)
    _check_numbers(found.tensors)
    words = {} if vocab is None else vocabulary(vocab, config.vocab_size)
    progress("writing the model folder")
    return save_model(out, config, found.tensors, words)


def recognise(names: Collection[str]) -> str:
    """The one origin that tensors of these names can be of, or `CheckpointError`."""
    fitting = [name for name in ORIGINS if origin(name).recognises(names)]
    if len(fitting) == 1:
        return fitting[0]
    some = ", ".join(name if len(name) <= 60 else name[:59] + "…" for name in list(names)[:4])
    known = "of no known origin" if not fitting else f"those of {' and of '.join(fitting)}"
    raise CheckpointError(
        f"the names of the tensors ({some}, …) are {known}: say --format {', '.join(ORIGINS)} to "
        "see what is missing"
    )


def describe(
    task: Task, found: Imported, head: Mapping[str, Any], labels: Path | None
) -> ModelConfig:
    """The config of a whole network, or an error that says which tensor or option is missing.

    head: what the options say of it.
    """
    outputs = _outputs(task, found)
    if task == "pair" and "combine" not in head:
        features = found.tensors["output.weight"].shape[-1]
        head = {
            **head,
            "combine": "concat" if features == 2 * found.rnn.output_size else "difference",
        }
    names: dict[int, str] = {}
    if task in LABELLED:
        given = [str(i) for i in range(outputs)] if labels is None else _read_labels(labels)
        if len(given) != outputs or len(set(given)) != len(given):
            raise OptionError(f"--labels: {len(set(given))} different labels for {outputs} classes")
        names = dict(enumerate(given))
    elif labels is not None:
        raise OptionError(f"--labels has no meaning for task {task}")
    try:
        return ModelConfig(
            architectures=(architecture(found.rnn, task),),
            model_type=found.rnn.family,
            task=task,
            dtype="float32",
            vocab_size=found.vocab_size,
            id2label=names,
            rnn=found.rnn,
            embedding=found.embedding,
            head=HeadConfig.model_validate(found.head.model_dump() | dict(head)),
        )
    except ValidationError as error:
        raise CheckpointError(f"this makes no network for task {task}: {explain(error)}") from error


def _outputs(task: Task, found: Imported) -> int:
    """How many scores the head gives; `CheckpointError` where task and tensors do not fit."""
    weight = matrix_of(found.tensors, "output.weight")
    has_head = any(name.startswith("output.") for name in found.tensors) or found.head.tied
    if task == "encode":
        if has_head or found.vocab_size is not None:
            raise CheckpointError(
                "the checkpoint has an embedding or output layer: import it with --task generate, "
                "classify, pair or tag"
            )
        return 0
    if not has_head:
        raise CheckpointError(
            f"no output layer (out.weight, output_layer.weight or decoder.weight), which task "
            f"{task} needs; a bare stack is imported with --task encode"
        )
    if task == "generate":
        if found.vocab_size is None:
            raise CheckpointError(
                "no embedding (embedding_layer.weight or encoder.weight), which task generate needs"
            )
        return found.vocab_size
    if weight is None:
        raise CheckpointError(f"no output.weight with a row for each class, as task {task} needs")
    return len(weight)


def _check_numbers(tensors: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` for weights of a training run that diverged."""
    if odd := [name for name, tensor in tensors.items() if tensor.isnan().any()]:
        raise CheckpointError(
            f"{', '.join(odd[:4])}: some of its numbers are NaN, so that every answer would be: "
            "import a checkpoint from before the training run diverged"
        )


def _read_object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise OptionError(f"{path} must hold a JSON object of constructor arguments")
    return content


def _read_labels(path: Path) -> list[str]:
    content = read_json(path)
    if not is_string_list(content):
        raise OptionError(f"{path} must hold a JSON list of strings in id order")
    return list(content)
