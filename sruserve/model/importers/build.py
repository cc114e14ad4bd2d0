"""From a checkpoint and what the user says of it to a model folder."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.config import ModelConfig, Task, architecture, explain
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.folder import Model, save_model
from sruserve.model.importers.checkpoint import read_checkpoint
from sruserve.model.importers.sru import describe_sru, is_sru, matrix_of, rename_sru
from sruserve.model.text import BYTES_FILE, WORDS_FILE, Words, is_byte_list

Origin = Literal["auto", "sru"]

UNKNOWN_WORD = "<oov>"


def import_checkpoint(
    weights: Path,
    out: Path,
    task: Task,
    options: Path | None = None,
    vocab: Path | None = None,
    labels: Path | None = None,
    origin: Origin = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> Model:
    """Write the model folder `out` from a checkpoint of `sru`, load it back and return it.

    options: JSON object of `sru.SRU`'s constructor arguments. vocab: JSON list of words or byte
    values in id order, or a tokenizer.json. labels: JSON list in id order.
    origin: the library that the weights come from; "auto" wants to know it by their names.
    progress: called with each step's name.
    """
    progress("reading the checkpoint")
    found = read_checkpoint(weights)
    if origin == "auto":
        _recognise(found)
    tensors = rename_sru(found)
    config = describe_sru(tensors, None if options is None else _read_object(options))
    progress("checking tensors and vocabulary")
    described = _describe(task, tensors, config, labels)
    vocabulary = {} if vocab is None else _vocabulary(vocab, described.vocab_size)
    progress("writing the model folder")
    return save_model(out, described, tensors, vocabulary)


def _recognise(tensors: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` if the names are of no library whose checkpoints can be read."""
    if not is_sru(tensors):
        some = ", ".join(list(tensors)[:4])
        raise CheckpointError(
            f"the names of the tensors ({some}, …) are of no known origin: a checkpoint of sru has "
            "rnn_lst.0.weight_c, alone or after encoder. or rnn.; rename them, or say --format sru "
            "to see what is missing"
        )


def _describe(
    task: Task, tensors: Mapping[str, Tensor], rnn: SRUConfig, labels: Path | None
) -> ModelConfig:
    """The config of a whole network, or an error that says which tensor or option is missing."""
    head, embedding = (matrix_of(tensors, f"{part}.weight") for part in ("output", "embedding"))
    if task != "encode" and head is None:
        raise CheckpointError(
            f"no output layer (out.weight or output_layer.weight), which task {task} needs; "
            "a bare stack is imported with --task encode"
        )
    if task == "encode" and (head is not None or embedding is not None):
        raise CheckpointError(
            "the checkpoint has an embedding or output layer: import it with --task classify "
            "or --task generate"
        )
    if task == "generate" and embedding is None:
        raise CheckpointError("no embedding (embedding_layer.weight), which task generate needs")
    names: dict[int, str] = {}
    if task == "classify" and head is not None:
        given = [str(i) for i in range(len(head))] if labels is None else _read_strings(labels)
        if len(given) != len(head) or len(set(given)) != len(given):
            raise OptionError(
                f"--labels: {len(set(given))} different labels for {len(head)} classes"
            )
        names = dict(enumerate(given))
    elif labels is not None:
        raise OptionError(f"--labels has no meaning for task {task}")
    try:
        return ModelConfig(
            architectures=(architecture(rnn, task),),
            task=task,
            dtype="float32",
            vocab_size=None if embedding is None else len(embedding),
            id2label=names,
            rnn=rnn,
        )
    except ValidationError as error:
        raise CheckpointError(f"this makes no network for task {task}: {explain(error)}") from error


def _vocabulary(path: Path, size: int | None) -> dict[str, bytes]:
    """The file that a model folder gets from `--vocab`."""
    if size is None:
        raise OptionError("--vocab: the checkpoint has no embedding, so it takes features, not ids")
    content = _read_json(path)
    entries = Words(path).size if isinstance(content, dict) else size
    if isinstance(content, list):
        entries = len(content)
    if entries != size:
        raise OptionError(f"--vocab has {entries} entries; the embedding has {size} rows")
    if isinstance(content, dict):
        return {WORDS_FILE: path.read_bytes()}
    if is_byte_list(content):
        return {BYTES_FILE: json.dumps(content).encode()}
    if not _is_string_list(content) or len(set(content)) != len(content):
        raise OptionError(
            "--vocab must be a tokenizer.json, or a JSON list of different words or byte values"
        )
    words = {word: i for i, word in enumerate(content)}
    if UNKNOWN_WORD not in words:
        raise OptionError(f"--vocab has no {UNKNOWN_WORD}, the entry for unknown words")
    tokenizer = Tokenizer(WordLevel(words, unk_token=UNKNOWN_WORD))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return {WORDS_FILE: tokenizer.to_str(pretty=False).encode()}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is no JSON of use: {error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    content = _read_json(path)
    if not isinstance(content, dict):
        raise OptionError(f"{path} must hold a JSON object of constructor arguments")
    return content


def _read_strings(path: Path) -> list[str]:
    content = _read_json(path)
    if not _is_string_list(content):
        raise OptionError(f"{path} must hold a JSON list of strings in id order")
    return list(content)


def _is_string_list(content: Any) -> bool:
    """Whether a JSON value lists strings that UTF-8 can hold: JSON can spell half a character."""
    return isinstance(content, list) and all(
        isinstance(entry, str) and not re.search("[\ud800-\udfff]", entry) for entry in content
    )
