"""Build a model folder from a checkpoint and the user's options."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.config import LABELLED, ModelConfig, explain
from sruserve.model.errors import CheckpointError, OptionError, printable
from sruserve.model.folder import Model, save_model
from sruserve.model.heads.config import HeadConfig, Scoring
from sruserve.model.importers import regression
from sruserve.model.importers.assumed import assumptions
from sruserve.model.importers.checkpoint import read_checkpoint, read_values
from sruserve.model.importers.drqa_reader import read_reader, reader_words
from sruserve.model.importers.file_formats import file_format
from sruserve.model.importers.format import Imported, config_of
from sruserve.model.importers.formats import (
    FORMATS,
    TRANSLATION_FORMATS,
    load_file_format,
    load_format,
)
from sruserve.model.importers.names import listed
from sruserve.model.importers.network import check_width
from sruserve.model.importers.tensors import matrix_of
from sruserve.model.importers.two_classes import with_two_classes
from sruserve.model.importers.vocabulary import (
    check_known_words,
    is_string_list,
    read_json,
    vocabulary,
)
from sruserve.model.importers.wiring.options import agreed
from sruserve.model.names import Task

# Options of this package, not of a library's constructor.
_HEAD_OPTIONS = ("pooling", "final", "combine")


def import_checkpoint(
    weights: Path,
    out: Path,
    task: Task,
    options: Path | None = None,
    vocab: Path | None = None,
    labels: Path | None = None,
    format: str = "auto",  # noqa: A002
    renames: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    lowercase: bool = False,
    warn: Callable[[str], None] = lambda _: None,
    assume: Callable[[str], None] = lambda _: None,
) -> Model:
    """Write the model folder `out` from a checkpoint, load it back and return it.

    options: file with a JSON object of the constructor's arguments, and a head's `pooling`,
        `final`, `activation` and `combine`.
    vocab: file with a JSON list of words, characters or byte values in id order, a JSON object of
        words and their ids, or a tokenizer.json.
    labels: file with a JSON list of the classes' names in id order.
    format: a name in `FORMATS` or `FILE_FORMATS`; "auto" recognises it by the file and the tensors'
        names.
    renames: OLD=NEW for tensors' names or prefixes, before anything is recognised.
    progress: called with the name of each step.
    lowercase: texts are put into lower case before they are read.
    warn: called with what may be wrong with the vocabulary, and with what a file has that is not
        served as it is there.
    assume: called with each assumption, such as "pooling last".

    Raises `CheckpointError`, `OptionError`, `FolderError` or another `ModelError`.
    """
    progress("reading the checkpoint")
    if format in TRANSLATION_FORMATS:
        raise OptionError(f"--format {format} has translation systems: add --task translate")
    wired = file_format(weights, format)
    if wired and renames:
        raise OptionError("--rename is for state dicts: this file describes its network itself")
    tensors = {} if wired else read_checkpoint(weights, renames)
    name = wired or (recognise(tensors) if format == "auto" else format)
    arguments = None if options is None else read_object(options)
    head, outputs = _own_options(arguments or {}, task)
    names = None if labels is None else _read_labels(labels)
    if wired:
        imported = load_file_format(name).read(weights, arguments, task)
        imported, head, outputs = agreed(imported, task, head, outputs, names)
    elif task == "answer":
        imported = read_reader(name, tensors, read_values(weights), arguments)
    else:
        imported = load_format(name).read(tensors, arguments, task)
    for note in imported.notes:
        warn(printable(note))
    if task in LABELLED and "activation" not in head:
        imported = with_two_classes(imported, names)
    progress("checking tensors and vocabulary")
    config = describe(task, imported, head, names, outputs)
    for assumption in assumptions(imported, config, head, outputs):
        assume(assumption)
    check_width(config, imported.tensors)
    check_numbers(imported.tensors)
    if lowercase and vocab is None and not imported.words:
        raise OptionError("--lowercase concerns texts: add --vocab, or omit it")
    if vocab is not None:
        words = vocabulary(vocab, config.vocab_size, lowercase, warn, reads_words=task == "answer")
    else:
        words = reader_words(imported, lowercase) if task == "answer" else {}
    if not imported.reads_unknown_words:
        check_known_words(words)
    progress("writing the model folder")
    return save_model(out, config, imported.tensors, words)


def _own_options(arguments: dict[str, Any], task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """Remove the options of the head, and of a regressor's outputs, and return both."""
    head = [key for key in _HEAD_OPTIONS if key in arguments]
    if arguments.get("activation") in get_args(Scoring):  # LRN has an option of the same name
        head.append("activation")
    regressed = [key for key in regression.OPTIONS if key in arguments and task == "regress"]
    first, second = ({key: arguments.pop(key) for key in keys} for keys in (head, regressed))
    return first, second


def recognise(names: Mapping[str, Tensor]) -> str:
    """Return the one format that has tensors of these names, or raise `CheckpointError`."""
    fitting = [name for name in FORMATS if load_format(name).recognises(names)]
    if len(fitting) == 1:
        return fitting[0]
    known = "are those of " + " and of ".join(fitting) if fitting else "fit no known format"
    raise CheckpointError(
        f"the tensors ({listed(names)}) {known}: choose --format, one of {', '.join(FORMATS)}, to "
        "see which tensors are missing; --rename OLD=NEW changes a name or a prefix"
    )


def describe(
    task: Task,
    imported: Imported,
    head: Mapping[str, Any],
    names: Sequence[str] | None,
    regressed: Mapping[str, Any],
) -> ModelConfig:
    """Return the config of a complete network.

    head: the options of the head. names: of classes or values. regressed: the options of task
    regress.

    Raises `CheckpointError` or `OptionError` that names the missing tensor or option.
    """
    outputs = _outputs(task, imported)
    if task == "pair" and "combine" not in head:
        features = imported.tensors["output.weight"].shape[-1]
        head = {
            **head,
            "combine": "concat" if features == 2 * imported.rnn.output_size else "difference",
        }
    head = _with_pooling(task, imported, head, regressed.get("steps") == "every")
    labels: dict[int, str] = {}
    if task in LABELLED:
        label_names = [str(i) for i in range(outputs)] if names is None else names
        if len(label_names) != outputs or len(set(label_names)) != len(label_names):
            raise OptionError(
                f"--labels: {len(set(label_names))} different labels for {outputs} classes: "
                "name each class once, in id order"
            )
        labels = dict(enumerate(label_names))
    elif names is not None and task != "regress":
        tasks = ", ".join((*LABELLED, "regress"))
        raise OptionError(f"--labels is for tasks {tasks}, not for task {task}: leave it out")
    values = None
    if task == "regress":
        values = regression.read_regression(regressed, names, outputs)
    try:
        return config_of(imported, task, head, labels, values)
    except ValidationError as error:
        raise CheckpointError(
            f"the checkpoint is not a network for task {task}: {explain(error)}; choose another "
            "--task, or correct --options"
        ) from error


def _with_pooling(
    task: Task, imported: Imported, head: Mapping[str, Any], every_step: bool
) -> Mapping[str, Any]:
    """Return the head's options; raises `OptionError` if the pooling is missing.

    every_step: the head answers at every step.

    Adds the entries of a final state: the last layer's, or all layers' if the head is that wide.

    The outputs of both directions at the last step, and their final states, have the same width:
    weights do not show which of them a head reads.
    """
    stated = "pooling" in head or imported.head.pooling != "last" or imported.steps is not None
    pools = task in ("classify", "pair", "regress") and not every_step
    if pools and imported.rnn.bidirectional and not stated:
        raise OptionError(
            'a bidirectional network needs "pooling" in --options: "final" if the head reads the '
            'final states of both directions, cat(h_n[-2], h_n[-1]); "last" if it reads the '
            'output at the last step; "mean", "max"'
        )
    pooling = head.get("pooling", "last")
    if imported.rnn.pools and pooling != "last":
        raise OptionError(
            f"--options: {imported.rnn.family} layers keep the largest value of each filter "
            "themselves: omit pooling"
        )
    kinds = pooling if isinstance(pooling, list) else [pooling]
    if "final" in head or "final" not in kinds:
        return head
    entries, weight = imported.rnn.final_entries, matrix_of(imported.tensors, "output.weight")
    width = sum(HeadConfig(final=entries).final_sizes(imported.rnn))
    all_layers = len(kinds) == 1 and weight is not None and weight.shape[1] == width
    return {**head, "final": entries if all_layers else entries[-1:]}


def _outputs(task: Task, imported: Imported) -> int:
    """Return the head's number of scores; raise `CheckpointError` if it does not fit the task."""
    weight = matrix_of(imported.tensors, "output.weight")
    has_head = any(name.startswith("output.") for name in imported.tensors) or imported.head.tied
    if task == "answer":
        return 0
    if task == "encode":
        if has_head or imported.vocab_size is not None:
            raise CheckpointError(
                "the checkpoint has an embedding or output layer: import it with --task generate, "
                "classify, pair or tag"
            )
        return 0
    if not has_head:
        raise CheckpointError(
            f"task {task} needs an output layer (out.weight, output_layer.weight or "
            "decoder.weight), and the checkpoint has none; import a bare stack with --task encode"
        )
    if task == "generate":
        if imported.vocab_size is None:
            raise CheckpointError(
                "task generate needs an embedding (embedding_layer.weight or encoder.weight), and "
                "the checkpoint has none: choose another --task"
            )
        return imported.vocab_size
    if weight is None:
        raise CheckpointError(
            f"task {task} needs output.weight with a row for each class; the checkpoint has none: "
            "choose another --task, or name the output layer with --rename OLD=output"
        )
    return len(weight)


def check_numbers(tensors: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` for weights of a training run that diverged."""
    if odd := [name for name, tensor in tensors.items() if tensor.isnan().any()]:
        raise CheckpointError(
            f"{', '.join(odd[:4])}: some numbers are NaN, so every result would be NaN: import a "
            "checkpoint from before the training run diverged"
        )


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, or raise `OptionError`."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise OptionError(f"{path} must hold a JSON object of constructor arguments")
    return content


def _read_labels(path: Path) -> list[str]:
    content = read_json(path)
    if not is_string_list(content):
        raise OptionError(f"{path} must hold a JSON list of strings in id order")
    return list(content)
