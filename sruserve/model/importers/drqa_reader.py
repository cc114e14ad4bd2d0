"""The whole document reader of DrQA (Chen et al. 2017), of its release and its re-implementation.

The release is facebookresearch/DrQA; the re-implementation hitvoice/DrQA, and the one with SRU in
the SRU repository. Both have the same network, but for what describes a word (`drqa_features.py`).
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import explain
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.drqa_encoders import read_encoder
from sruserve.model.importers.drqa_features import describe_words, with_tag_columns
from sruserve.model.importers.format import Imported
from sruserve.model.importers.options import agree, flag, shown
from sruserve.model.importers.tensors import check_names, floats, need
from sruserve.model.importers.vocabulary import unknown_word
from sruserve.model.reader.config import TAGS, ReaderConfig
from sruserve.model.reader.vocabulary import word_tokenizer
from sruserve.model.text.vocabulary_files import WORDS_FILE

_NAMES = {
    "qemb_match.linear": "match",
    "self_attn.linear": "merge",
    "start_attn.linear": "start",
    "end_attn.linear": "end",
    "pos_embedding": "tags.pos",
    "ner_embedding": "tags.ner",
}
_ENCODERS = ("doc_rnn.", "question_rnn.")
# A copy of rows of the embedding that training does not change.
_COPIES = ("fixed_embedding",)
_OPTIONS = ("inputs", "features", "pos", "ner", "uncased")
_WORDS = "save DrQA's dictionary of words and their numbers in it"


def read_reader(
    name: str,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
    options: Mapping[str, Any] | None,
) -> Imported:
    """Convert a state dict for task answer.

    name: of its format. values: what the file has beside it: `args` or `config`, `feature_dict`
    and `word_dict`. options: `inputs` and `features` of `ReaderConfig`, the labels of the tags
    `pos` and `ner`, `uncased`, and the arguments of `SRUCell`.

    Raises `CheckpointError` or `OptionError`, with the name of what is missing.
    """
    if name != "drqa":
        raise CheckpointError(
            f"task answer needs a document reader of DrQA; the checkpoint is one of {name}: "
            "choose another --task"
        )
    tensors = {k: t for k, t in floats(tensors).items() if k not in _COPIES}
    own, cells = _split(dict(options or {}))
    saved = _arguments(values)
    tensors = with_tag_columns(tensors, saved)
    table = need(tensors, "embedding.weight", 2)
    width = table.shape[1]
    own = describe_words(own, values, width, tensors)
    document = read_encoder(tensors, "doc_rnn", cells)
    question = read_encoder(tensors, "question_rnn", cells)
    concat = _concatenates(tensors, document.config, question.config)
    stated = _flag(saved, "concat_rnn_layers")
    if None not in (stated, concat):
        agree({"concat_rnn_layers": stated}, {"concat_rnn_layers": concat})
    rescale = {"rescale": True} if document.rescales or question.rescales else {}
    changes = {**rescale, **({"concat_layers": True} if concat else {})}
    rnn = _changed(document.config, changes)
    reader = _reader(own, saved, tensors, question.config.num_layers)
    try:
        reader.check(rnn, width, len(table))
        expected = reader.question_rnn(rnn, width)
    except ValueError as error:
        raise CheckpointError(f"the checkpoint is no document reader: {error}") from error
    if expected != _changed(question.config, changes):
        raise CheckpointError(
            "the encoders of document and question differ in more than their inputs and their "
            f"numbers of layers, which cannot be served: {document.config}; {question.config}; "
            "import a reader whose encoders are alike"
        )
    result = {"embedding.weight": table}
    result |= {f"rnn.{k}": tensor for k, tensor in document.tensors.items()}
    result |= {f"question.{k}": tensor for k, tensor in question.tensors.items()}
    result |= _renamed(tensors)
    shapes = reader.shapes(rnn, width) | {f"rnn.{k}": shape for k, shape in rnn.shapes().items()}
    check_names(result, {"embedding.weight", *shapes}, "")
    notes = [f"each request needs `features` with {' and '.join(reader.needs)}"] * bool(
        reader.needs
    )
    return Imported(
        result,
        rnn,
        len(table),
        input_width=width,
        notes=tuple(notes),
        reader=reader,
        words=_words(values, len(table)),
    )


def reader_words(imported: Imported, lowercase: bool) -> dict[str, bytes]:
    """The vocabulary file of a reader whose checkpoint has its words; raises `OptionError`."""
    if not imported.words:
        raise OptionError(
            "the checkpoint has no word_dict: pass its words in id order as --vocab; a reader "
            "answers in words"
        )
    assert imported.reader is not None
    lowered = lowercase or imported.reader.uncased
    unknown = unknown_word(imported.words)
    return {WORDS_FILE: word_tokenizer(imported.words, unknown, lowered)}


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the reader, and those of its cells."""
    own = {name: options.pop(name) for name in _OPTIONS if name in options}
    return own, options


def _arguments(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the training run, if the file has them; refuses what is not served."""
    saved: Any = next((values[name] for name in ("args", "config") if name in values), {})
    if not isinstance(saved, Mapping):
        raise CheckpointError(
            "the file's arguments are no dict: save the reader by DrQA's own code again"
        )
    kind = saved.get("model_type", "rnn")
    if kind != "rnn":
        raise CheckpointError(
            f"model_type is {shown(kind)}; only the reader 'rnn' is served: import such "
            "a checkpoint"
        )
    return saved


def _flag(saved: Mapping[str, Any], name: str) -> bool | None:
    """A flag among the arguments; None without it."""
    value = saved.get(name)
    if not isinstance(value, int | None):
        raise CheckpointError(
            f"{name} of the file is {shown(value)}; it must be true or false: "
            "correct it in the file"
        )
    return None if value is None else bool(value)


def _concatenates(
    tensors: Mapping[str, Tensor], document: StackConfig, question: StackConfig
) -> bool | None:
    """Whether the encoders' outputs are those of all layers, by the width of the attention.

    None: each has one layer, so that it does not matter.
    """
    widths = tuple(need(tensors, "start_attn.linear.weight", 2).shape)
    last = (document.output_size, question.output_size)
    every = (last[0] * document.num_layers, last[1] * question.num_layers)
    if widths not in (last, every):
        raise CheckpointError(
            f"start_attn.linear.weight has shape {list(widths)}; the encoders give {list(last)}, "
            f"or {list(every)} with all layers: save the whole state dict of the reader"
        )
    return None if every == last else widths == every


def _changed(config: StackConfig, changes: Mapping[str, Any]) -> StackConfig:
    return type(config).model_validate(config.model_dump() | dict(changes))


def _reader(
    own: Mapping[str, Any], saved: Mapping[str, Any], tensors: Mapping[str, Tensor], layers: int
) -> ReaderConfig:
    """The config of the parts around the encoders."""
    merges = "self_attn" if "self_attn.linear.weight" in tensors else "avg"
    agree({k: saved[k] for k in ("question_merge",) if k in saved}, {"question_merge": merges})
    cases = {bool(_flag(saved, name)) for name in ("uncased_doc", "uncased_question")}
    if len(cases) > 1:
        raise CheckpointError(
            "uncased_doc and uncased_question differ: the words of a document and its question are "
            "looked up alike here: import a reader that was trained with both alike"
        )
    fields: dict[str, Any] = {
        "question_layers": layers,
        "question_merge": merges,
        "inputs": own["inputs"],
        "features": own["features"],
        "uncased": flag(own, "uncased", cases.pop()),
    }
    if isinstance(limit := saved.get("max_len"), int) and limit > 0:
        fields["max_answer_words"] = limit
    for tag in TAGS:
        table = tensors.get(f"{tag}_embedding.weight")
        if table is None:
            continue
        if tag not in own:
            raise OptionError(
                f'the file does not name its {len(table)} tags of {tag}: pass "{tag}" in '
                "--options, a list of them in id order"
            )
        fields[tag] = {"labels": own[tag], "size": table.shape[1]}
    try:
        return ReaderConfig.model_validate(fields)
    except ValidationError as error:
        raise OptionError(f"--options: {explain(error)}") from error


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors around the encoders, by a folder's names; others keep their own."""
    result = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if not name.startswith(_ENCODERS) and name != "embedding.weight":
            result[f"{_NAMES.get(module, module)}.{kind}"] = tensor
    return result


def _words(values: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """The words of a file's dictionary in id order; empty without one."""
    numbers = values.get("word_dict", {})
    numbers = numbers.get("tok2ind", numbers) if isinstance(numbers, Mapping) else None
    if not isinstance(numbers, Mapping):
        raise CheckpointError(f"word_dict is no dictionary of words; {_WORDS}")
    if not numbers:
        return ()
    words = [(number, word) for word, number in numbers.items() if isinstance(word, str)]
    if odd := next((word for number, word in words if type(number) is not int), None):
        raise CheckpointError(f"word_dict has no number of the word {shown(odd)!r}; {_WORDS}")
    if any("\ud800" <= character <= "\udfff" for _, word in words for character in word):
        raise CheckpointError(
            f"word_dict has a word that is no text (half of a surrogate pair); {_WORDS}"
        )
    if sorted(number for number, _ in words) != list(range(count)):
        raise CheckpointError(
            f"word_dict has {len(words)} words; the embedding has {count} rows, one for each; "
            f"{_WORDS}"
        )
    return tuple(word for _, word in sorted(words))
