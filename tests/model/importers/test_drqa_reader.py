"""A whole DrQA reader: files of the release, and of its re-implementation with SRU."""

import argparse
import math
import sys
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.importers.pickled import PickleRefused, PickleScan
from sruserve.model.reader.config import COLUMNS
from tests.model.importers.formulas import random, sru_layer
from tests.model.importers.running import imported, refused

WORDS = ["<NULL>", "<UNK>", "Ada", "lives", "in", "Lisbon", ".", "?", "Where"]
WIDTH, HIDDEN = 4, 3
FEATURES = {"in_question": 0, "in_question_uncased": 1, "pos=NN": 2, "ner=PER": 3, "tf": 4}
CONFIG = {"hidden_size": HIDDEN, "use_qemb": True, "concat_rnn_layers": True, "max_len": 7}


class Dictionary:
    """Stands for the release's class of this name, which has these two attributes."""

    def __init__(self, words: list[str]) -> None:
        self.tok2ind = {word: i for i, word in enumerate(words)}
        self.ind2tok = dict(enumerate(words))


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is there while its files are written, as `drqa.reader.data`."""
    module = ModuleType("drqa.reader.data")
    module.Dictionary = Dictionary  # type: ignore[attr-defined]
    monkeypatch.setattr(Dictionary, "__module__", "drqa.reader.data")
    for name in ("drqa", "drqa.reader"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "drqa.reader.data", module)


def around(outputs: int, aligned: bool = True) -> dict[str, Tensor]:
    """The tensors around the encoders."""
    tensors = {"embedding.weight": random(len(WORDS), WIDTH, seed=1)}
    if aligned:
        tensors["qemb_match.linear.weight"] = random(WIDTH, WIDTH, seed=2)
        tensors["qemb_match.linear.bias"] = random(WIDTH, seed=3)
    tensors["self_attn.linear.weight"] = random(1, outputs, seed=4)
    tensors["self_attn.linear.bias"] = random(1, seed=5)
    for end, seed in (("start", 6), ("end", 8)):
        tensors[f"{end}_attn.linear.weight"] = random(outputs, outputs, seed=seed)
        tensors[f"{end}_attn.linear.bias"] = random(outputs, seed=seed + 1)
    return tensors


def lstm(name: str, inputs: int, layers: int) -> tuple[dict[str, Tensor], list[torch.nn.LSTM]]:
    tensors: dict[str, Tensor] = {}
    modules = []
    for i in range(layers):
        torch.manual_seed(i)
        module = torch.nn.LSTM(inputs if i == 0 else 2 * HIDDEN, HIDDEN, bidirectional=True)
        tensors |= {f"{name}.rnns.{i}.{key}": t for key, t in module.state_dict().items()}
        modules.append(module)
    return tensors, modules


def release_file(**changes: Any) -> tuple[dict[str, Any], list[Any]]:
    """A file as the release's model.py saves it, and its LSTMs."""
    document, modules = lstm("doc_rnn", 2 * WIDTH + len(FEATURES), 2)
    question, more = lstm("question_rnn", WIDTH, 2)
    args = {"model_type": "rnn", "question_merge": "self_attn", "concat_rnn_layers": True}
    saved = {
        "state_dict": around(4 * HIDDEN) | document | question,
        "word_dict": Dictionary(WORDS),
        "feature_dict": FEATURES,
        "args": argparse.Namespace(**args | changes),
    }
    return saved, [modules, more]


def sru(name: str, inputs: int, layers: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    width = 2 * HIDDEN
    for i in range(layers):
        reads, seed = (inputs if i == 0 else width), len(name) * 100 + 10 * i
        own = {
            "weight": random(reads, width * (3 if reads == width else 4), seed=seed),
            "weight_c": random(2 * width, seed=seed + 1),
            "bias": random(2 * width, seed=seed + 2),
            "scale_x": torch.tensor([math.sqrt(3)]),
        }
        tensors |= {f"{name}.rnns.{i}.{key}": tensor for key, tensor in own.items()}
    return tensors


def again_file(tags: int = 0, columns: bool = False) -> dict[str, Any]:
    """A file as the re-implementations save it; with SRU layers, and with tags if there are any.

    columns: each tag is a column of its own.
    """
    inputs = 2 * WIDTH + 4 + (tags if columns else 2 if tags else 0)
    tensors = around(4 * HIDDEN) | sru("doc_rnn", inputs, 2) | sru("question_rnn", WIDTH, 2)
    config = CONFIG
    if tags and columns:
        config = CONFIG | {"pos": True, "pos_size": tags, "ner": False, "ner_size": 19}
    elif tags:
        tensors["pos_embedding.weight"] = random(tags, 2, seed=20)
    state = {"network": tensors, "optimizer": {"state": {}}, "updates": 3}
    return {"state_dict": state, "config": config, "epoch": 1, "best_eval": 70.5}


def expected(
    tensors: dict[str, Tensor], parts: list[str], features: Tensor, tags: Tensor | None, run: Any
) -> Tensor:
    """The formulas with the names of the files. run(encoder, x): the outputs of its layers."""
    table = tensors["embedding.weight"]
    words, question_words = table[[2, 3, 4, 5, 6]], table[[8, 3, 2]]

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ tensors[f"{name}.linear.weight"].T + tensors[f"{name}.linear.bias"]

    keys, others = (linear("qemb_match", x).relu() for x in (words, question_words))
    described = {"words": words, "features": features}
    described["aligned"] = (keys @ others.T).softmax(1) @ question_words
    if tags is not None:
        described["pos"] = tensors["pos_embedding.weight"][tags]
    document = torch.cat(run("doc_rnn", torch.cat([described[part] for part in parts], 1)), 1)
    question = torch.cat(run("question_rnn", question_words), 1)
    merged = linear("self_attn", question).softmax(0).T @ question
    ends = [document @ linear(f"{end}_attn", merged)[0] for end in ("start", "end")]
    return torch.stack(ends, 1)


def scored(model: Any, rows: Tensor) -> Tensor:
    offsets, nowhere = torch.tensor([0, 5, 8]), torch.full((2,), -1)
    batch = RaggedBatch(offsets, model.network.layout.allocate(1), nowhere, nowhere)
    scores: Tensor = model.network.hidden(rows, batch)[:5]
    return scores


def rows(**columns: list[float]) -> Tensor:
    filled = torch.zeros(8, len(COLUMNS))
    filled[:, 0] = torch.tensor([2.0, 3, 4, 5, 6, 8, 3, 2])
    for name, values in columns.items():
        filled[:5, COLUMNS.index(name)] = torch.tensor(values)
    return filled


@torch.no_grad()
def test_a_file_of_the_release_is_imported_with_its_words_and_features(tmp_path: Path) -> None:
    saved, (document, question) = release_file()
    saved["state_dict"]["fixed_embedding"] = random(3, WIDTH, seed=30)
    model = imported(tmp_path, saved, "answer")
    reader = model.config.reader
    assert reader is not None
    assert (reader.needs, reader.max_answer_words) == (("pos", "ner"), 15)
    assert model.codec is not None
    assert model.codec.encode("Ada lives in Porto.")[0].tolist() == [2, 3, 4, 1, 6]

    def run(encoder: str, x: Tensor) -> list[Tensor]:
        outputs = []
        for module in document if encoder == "doc_rnn" else question:
            x = module(x[:, None])[0][:, 0]
            outputs.append(x)
        return outputs

    # pos: NN is 0, another tag 1; ner: PER is 0
    inputs = rows(
        in_question=[1, 0, 0, 0, 1],
        tf=[0.2, 0.1, 0, 0.5, 1],
        pos=[0, 1, 0, 1, 1],
        ner=[1, 1, 0, 0, 1],
    )
    features = torch.tensor(
        [[1, 0, 1, 0, 0.2], [0, 0, 0, 0, 0.1], [0, 0, 1, 1, 0], [0, 0, 0, 1, 0.5], [1, 0, 0, 0, 1]]
    )
    order = ["words", "aligned", "features"]
    theirs = expected(saved["state_dict"], order, features, None, run)
    torch.testing.assert_close(scored(model, inputs), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [False, True], ids=["embedded", "columns"])
@pytest.mark.parametrize("tags", [0, 3])
def test_a_file_of_the_reimplementation_is_imported(
    tmp_path: Path, tags: int, columns: bool
) -> None:
    saved = again_file(tags, columns)
    tensors = dict(saved["state_dict"]["network"])
    if columns:
        tensors["pos_embedding.weight"] = torch.eye(3)
    options = {"options": {"pos": ["NN", "VB", "."]}} if tags else {}
    model = imported(tmp_path, saved, "answer", vocab=WORDS, **options)
    assert model.config.reader is not None
    assert model.config.reader.max_answer_words == CONFIG["max_len"]

    def run(encoder: str, x: Tensor) -> list[Tensor]:
        outputs = []
        for i in range(2):
            own = [tensors[f"{encoder}.rnns.{i}.{name}"] for name in ("weight", "bias", "weight_c")]
            x = sru_layer(x, *own, scale=math.sqrt(3), directions=2)
            outputs.append(x)
        return outputs

    numbers = [0, 2, 1, 0, 2]
    inputs = rows(
        in_question=[1, 0, 0, 0, 1], in_question_uncased=[1, 1, 0, 0, 1],
        in_question_lemma=[0, 0, 1, 0, 0], tf=[0.2, 0.1, 0, 0.5, 1],
        pos=list(map(float, numbers)) if tags else [0.0] * 5,
    )  # fmt: skip
    order = ["words", "features", "aligned", *(["pos"] if tags else [])]
    chosen = torch.tensor(numbers) if tags else None
    theirs = expected(tensors, order, inputs[:5, 1:5], chosen, run)
    torch.testing.assert_close(scored(model, inputs), theirs, rtol=1e-5, atol=1e-5)


def test_words_in_lower_case_are_looked_up_and_compared_so(tmp_path: Path) -> None:
    saved, _ = release_file(uncased_doc=True, uncased_question=True)
    saved["word_dict"] = Dictionary([word.lower() for word in WORDS[2:]] + ["<NULL>", "<UNK>"])
    model = imported(tmp_path, saved, "answer")
    assert model.config.reader is not None
    assert model.config.reader.uncased
    assert model.codec is not None
    assert model.codec.encode("ADA in")[0].tolist() == [0, 2]


def numbered(words: dict[Any, Any]) -> dict[str, Any]:
    """A file whose dictionary has other entries."""
    numbers = {word: i for i, word in enumerate(WORDS) if i != 2}
    return {**release_file()[0], "word_dict": numbers | words}


def without(name: str) -> dict[str, Any]:
    saved, _ = release_file()
    return {key: value for key, value in saved.items() if key != name}


@pytest.mark.parametrize(
    ("saved", "options", "message"),
    [
        (release_file(uncased_doc=True)[0], None, "uncased_doc and uncased_question differ"),
        (release_file(model_type="cnn")[0], None, "only the reader 'rnn' is served"),
        (release_file(question_merge="avg")[0], None, "question_merge is avg; the weights say"),
        (release_file(concat_rnn_layers=False)[0], None, "concat_rnn_layers is False; the weights"),
        (without("word_dict"), None, "no word_dict: pass its words in id order as --vocab"),
        (without("feature_dict"), None, 'pass "inputs" in --options'),
        (without("feature_dict"), {"inputs": ["words"]}, 'pass "features" in --options'),
        ({**release_file()[0], "feature_dict": {"in_question": 1}}, None, "from 0 without gaps"),
        ({**release_file()[0], "feature_dict": {"tf": 0}}, None, "1 features are named"),
        ({**release_file()[0], "word_dict": Dictionary(WORDS[1:])}, None, "has 8 words; the embed"),
        (numbered({"Ada": "2"}), None, "word_dict has no number of the word 'Ada'"),
        (numbered({"Ada": torch.zeros(2)}), None, "word_dict has no number of the word 'Ada'"),
        (numbered({"\ud800": 2}), None, "half of a surrogate pair"),
        (release_file(concat_rnn_layers=torch.zeros(2))[0], None, "it must be true or false"),
        (release_file(uncased_doc=torch.zeros(0))[0], None, "uncased_doc of the file is tensor"),
        (without("feature_dict"), {"inputs": ["words"], "features": 3}, "features is 3; it must"),
        (release_file()[0], {"surprise": 1}, "'surprise' is no option of torch's layers"),
        (again_file(3), None, 'does not name its 3 tags of pos: pass "pos"'),
        (again_file(), {"surprise": 1}, "surprise is unknown"),
        (torch.nn.LSTM(3, 4).state_dict(), None, "needs a document reader of DrQA"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_reader_is_refused_by_name(
    tmp_path: Path, saved: Any, options: Any, message: str
) -> None:
    files = {} if options is None else {"options": options}
    assert message in refused(tmp_path, saved, "answer", **files)


def test_an_object_that_has_more_than_attributes_is_no_bag(tmp_path: Path) -> None:
    saved, _ = release_file()
    saved["args"] = Path("/")
    assert "holds more than plain tensors" in refused(tmp_path, saved, "answer")


BAG = b"\x80\x02cargparse\nNamespace\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BAG + b"K\x05\x85\x81.", "argparse Namespace with arguments"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "a call or a storage of collections"),
        (BAG + b")\x81]b.", "attributes that are no dict"),
        (b"\x80\x02cdrqa.reader.data\nOther\n)\x81.", "drqa.reader.data.Other"),
    ],
    ids=["arguments", "another class", "other attributes", "another name"],
)
def test_only_the_two_objects_are_made_and_of_attributes_alone(
    content: bytes, message: str
) -> None:
    with pytest.raises(PickleRefused, match=message):
        PickleScan(len(content)).read(BytesIO(content))
    PickleScan(99).read(BytesIO(BAG + b")\x81}b."))
