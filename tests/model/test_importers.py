"""Checkpoints of the reference's scripts, and everything that is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.config import ModelConfig
from sruserve.model.folder import load_model
from tests.support import random_tensors

RNN = {"input_size": 8, "hidden_size": 12, "num_layers": 2}
LABELS = ["cold", "warm", "hot"]
WORDS = ["<oov>", "the", "cat", "sat"]


def script_tensors(task: str, names: dict[str, str]) -> dict[str, Tensor]:
    config = ModelConfig(
        architectures=(),
        task=task,  # type: ignore[arg-type]
        dtype="float32",
        vocab_size=4,
        id2label=dict(enumerate(LABELS)) if task == "classify" else {},
        rnn=SRUConfig(**RNN),  # type: ignore[arg-type]
    )
    tensors = random_tensors(config)
    for new, old in names.items():
        tensors = {name.replace(new, old, 1): tensor for name, tensor in tensors.items()}
    return tensors


CLASSIFIER = {"embedding.": "emb_layer.embedding.", "rnn.": "encoder.", "output.": "out."}
ENWIK8 = {"embedding.": "embedding_layer.", "output.": "output_layer."}


def run_import(tmp_path: Path, tensors: Any, *arguments: str, **files: Any) -> Any:
    weights = tmp_path / "weights.pt"
    if isinstance(tensors, bytes):
        weights.write_bytes(tensors)
    else:
        torch.save(tensors, weights)
    options: list[str] = []
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        options += [f"--{name}", str(tmp_path / f"{name}.json")]
    return CliRunner().invoke(
        app, ["import", str(weights), str(tmp_path / "out"), *arguments, *options]
    )


@pytest.mark.parametrize("wrapper", ["", "state_dict", "module."])
def test_a_checkpoint_of_the_classification_script_is_imported(
    tmp_path: Path, wrapper: str
) -> None:
    tensors: Any = script_tensors("classify", CLASSIFIER)
    if wrapper == "module.":
        tensors = {f"module.{name}": tensor for name, tensor in tensors.items()}
    elif wrapper:
        tensors = {wrapper: tensors, "epoch": 3}
    result = run_import(
        tmp_path, tensors, "--task", "classify", options={}, vocab=WORDS, labels=LABELS
    )
    assert result.exit_code == 0, result.output
    model = load_model(tmp_path / "out")
    assert model.labels == tuple(LABELS)
    assert model.codec is not None
    assert model.codec.encode("the dog  sat")[0].tolist() == [1, 0, 3]


def test_a_checkpoint_of_the_enwik8_script_is_imported(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    result = run_import(
        tmp_path,
        tensors,
        "--task",
        "generate",
        "--format",
        "sru",
        options={},
        vocab=[10, 97, 98, 99],
    )
    assert result.exit_code == 0, result.output
    model = load_model(tmp_path / "out")
    assert model.codec is not None
    assert model.codec.encode("abc\n")[0].tolist() == [1, 2, 3, 0]


def test_training_options_are_accepted_and_dropped(tmp_path: Path) -> None:
    options = {**RNN, "dropout": 0.2, "highway_bias": -3, "rnn_dropout": 0.1, "n_proj": 0}
    result = run_import(
        tmp_path, script_tensors("generate", ENWIK8), "--task", "generate", options=options
    )
    assert result.exit_code == 0, result.output
    assert load_model(tmp_path / "out").codec is None


def refused(tmp_path: Path, tensors: Any, *arguments: str, **files: Any) -> str:
    result = run_import(tmp_path, tensors, *arguments, **files)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
    return " ".join(result.output.split())


def test_what_a_state_dict_cannot_tell_is_asked_for(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    assert "--options" in refused(tmp_path, tensors, "--task", "generate")


def test_a_task_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    assert "--task generate" in refused(tmp_path, tensors, "--task", "encode", options={})
    bare = {k.removeprefix("rnn."): v for k, v in tensors.items() if k.startswith("rnn.")}
    assert "--task encode" in refused(tmp_path, bare, "--task", "classify", options={})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 7}, "hidden_size is 7; the weights say 12"),
        ({"bidirectional": True, "input_size": "wide"}, "input_size"),
        ({"surprise": 1}, "surprise"),
        ({"custom_m": "mine"}, "custom_m"),
        ({"reset_gate": "both"}, "reset_gate"),
        ([], "JSON object"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    assert message in refused(tmp_path, tensors, "--task", "classify", options=options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder.rnn_lst.1.bias": None}, "rnn.rnn_lst.1.bias is missing"),
        ({"surprise": torch.zeros(2)}, "surprise is not expected"),
        ({"encoder.rnn_lst.1.weight": torch.zeros(12, 37)}, "[12, 37], not [12, 36]"),
        ({"encoder.rnn_lst.0.bias": torch.zeros(3, 3)}, "misshapen"),
    ],
)
def test_missing_extra_and_misshapen_tensors_are_named(
    tmp_path: Path, change: dict[str, Tensor | None], message: str
) -> None:
    tensors = {**script_tensors("classify", CLASSIFIER), **change}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    assert message in refused(tmp_path, tensors, "--task", "classify", options={})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"labels": ["a", "b"]}, "2 different labels for 3 classes"),
        ({"labels": "a"}, "list of strings"),
        ({"vocab": ["a", "b"]}, "2 entries; the embedding has 4"),
        ({"vocab": ["a", "b", "c", "c"]}, "different words"),
        ({"vocab": ["a", "b", "c", "d"]}, "<oov>"),
    ],
)
def test_labels_and_vocabularies_that_do_not_fit_are_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    assert message in refused(tmp_path, tensors, "--task", "classify", options={}, **files)


# What sru 2.6.0 makes of SRU(12, 12) and, with a projection of 10, of SRU(8, 12): a layer ignores a
# projection that is not below both of its widths, and without different widths there is no
# input_to_hidden.
LAYER = {"weight": (12, 36), "weight_c": (24,), "bias": (24,), "scale_x": (1,)}
NARROW = {**LAYER, "weight": (8, 48)}
PROJECTED = {**LAYER, "weight_proj": (12, 10), "weight": (10, 36)}


def bare(*layers: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {
        f"rnn_lst.{i}.{name}": torch.ones(shape)
        for i, layer in enumerate(layers)
        for name, shape in layer.items()
    }


@pytest.mark.parametrize(
    "options",
    [
        {"proj_input_to_hidden_first": True},
        {"proj_input_to_hidden_first": False},
        {"projection_size": 12},
        {"projection_size": 64},
        {"projection_size": -1},
        {"n_proj": 12, "projection_size": 12},
        {"layer_norm": False},
        {"bidirectional": False},
        {"input_size": 12, "hidden_size": 12, "num_layers": 2},
    ],
    ids=str,
)
def test_an_option_that_the_library_ignored_is_accepted(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    result = run_import(tmp_path, bare(LAYER, LAYER), "--task", "encode", options=options)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("options", [{}, {"projection_size": 10}, {"n_proj": 10}], ids=str)
def test_a_projection_that_only_some_layers_use_is_read_from_them(
    tmp_path: Path, options: dict[str, int]
) -> None:
    tensors = bare(NARROW, PROJECTED)
    result = run_import(tmp_path, tensors, "--task", "encode", options=options)
    assert result.exit_code == 0, result.output
    rnn = load_model(tmp_path / "out").config.rnn
    assert (rnn.input_size, rnn.projection_size) == (8, 10)


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        (bare(NARROW), {"proj_input_to_hidden_first": True}, "input_to_hidden.weight is missing"),
        (bare(LAYER), {"projection_size": 4}, "weight_proj is missing"),
        (bare(LAYER), {"layer_norm": True}, "layer_norm is True; the weights say False"),
        (bare(PROJECTED), {"projection_size": 9}, "is 9; the weights say 10"),
        (bare(PROJECTED), {"projection_size": -1}, "is 0; the weights say 10"),
        (bare(PROJECTED), {"projection_size": 9, "n_proj": 10}, "with two values"),
        (bare(LAYER), {"bidirectional": "no"}, "bidirectional must be true or false"),
        (
            {**bare(LAYER), "input_to_hidden.weight": torch.zeros(12, 5)},
            {"proj_input_to_hidden_first": False},
            "is False; the weights say True",
        ),
        ({**bare(LAYER), "input_to_hidden.weight": torch.tensor(1.0)}, {}, "no matrix"),
        ({**bare(LAYER), "rnn_lst.0.weight_proj": torch.tensor(1.0)}, {}, "no matrix"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_an_option_that_the_weights_contradict_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], options: dict[str, Any], message: str
) -> None:
    assert message in refused(tmp_path, tensors, "--task", "encode", options=options)


def test_names_of_no_known_origin_are_refused_unless_the_origin_is_said(tmp_path: Path) -> None:
    lstm = {"lstm.weight_ih_l0": torch.zeros(4, 4), "lstm.bias_ih_l0": torch.zeros(4)}
    message = refused(tmp_path, lstm, "--task", "encode", options={})
    assert "lstm.weight_ih_l0" in message
    assert "of no known origin" in message
    cut = {name: t for name, t in bare(LAYER).items() if not name.endswith("weight_c")}
    assert "--format sru" in refused(tmp_path, cut, "--task", "encode", options={})
    said = ("--task", "encode", "--format", "sru")
    assert "weight_c is missing" in refused(tmp_path, cut, *said, options={})
    assert "no rnn_lst.* tensors" in refused(tmp_path, lstm, *said, options={})


def tokenizer_json(**words: int) -> Any:
    tokenizer = Tokenizer(WordLevel(words, unk_token="<oov>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return json.loads(tokenizer.to_str())


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (tokenizer_json(**{"<oov>": 0, "a": 1}), "2 entries; the embedding has 4"),
        (tokenizer_json(**{"<oov>": 0, "a": 1, "b": 2, "c": 9}), "without gaps"),
        (tokenizer_json(a=0, b=1, c=2, d=3), "no tokenizer.json of use"),
        ({"model": "none"}, "no tokenizer.json of use"),
    ],
    ids=["too-small", "gap", "no-unknown-word", "other-json"],
)
def test_a_tokenizer_that_does_not_fit_is_refused_and_leaves_the_old_folder(
    tmp_path: Path, vocab: Any, message: str
) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    arguments = (tmp_path, tensors, "--task", "classify")
    assert message in refused(*arguments, options={}, vocab=vocab)
    assert run_import(*arguments, options={}, vocab=WORDS).exit_code == 0
    digest = load_model(tmp_path / "out").digest
    result = run_import(*arguments, options={}, vocab=vocab)
    assert result.exit_code == 1
    assert load_model(tmp_path / "out").digest == digest


class Payload:
    """Unpickling this would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "pwned"))


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    tensors: dict[str, Any] = dict(script_tensors("classify", CLASSIFIER))
    tensors["payload"] = Payload(tmp_path / "pwned")
    message = refused(tmp_path, tensors, "--task", "classify", options={})
    assert "not unpickled" in message
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"not a checkpoint", b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path, content, "--task", "classify", options={})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["import", str(tmp_path / "no.pt"), str(tmp_path / "out"), "--task", "encode"]
    )
    assert result.exit_code == 1
    assert "no.pt" in "".join(result.output.split())


def test_an_output_layer_tied_to_the_embedding_is_imported(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    square = torch.randn(4, 12)
    tensors |= {"embedding_layer.weight": square, "output_layer.weight": square}
    tensors |= {"rnn.rnn_lst.0.weight": torch.randn(12, 36)}
    result = run_import(tmp_path, tensors, "--task", "generate", options={})
    assert result.exit_code == 0, result.output
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(saved["embedding.weight"], square)
    assert torch.equal(saved["output.weight"], square)


@pytest.mark.filterwarnings("ignore")  # torch warns of CSR and of quantized tensors
@pytest.mark.parametrize("kind", ["sparse", "csr", "quantized", "meta"])
def test_tensors_that_are_not_dense_numbers_are_refused(tmp_path: Path, kind: str) -> None:
    dense = torch.ones(4, 8)
    make: dict[str, Callable[[], Tensor]] = {
        "sparse": dense.to_sparse,
        "csr": dense.to_sparse_csr,
        "quantized": lambda: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        "meta": lambda: dense.to("meta"),
    }
    tensors = {**script_tensors("generate", ENWIK8), "embedding_layer.weight": make[kind]()}
    message = refused(tmp_path, tensors, "--task", "generate", options={})
    assert "ordinary dense tensors" in message or "not unpickled" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_layer.weight": torch.tensor(1.0)}, "embedding.weight is misshapen"),
        ({"output_layer.weight": torch.tensor(1.0)}, "output.weight is misshapen"),
        ({"embedding_layer.weight": torch.zeros(0, 8)}, "vocab_size"),
        ({f"rnn.rnn_lst.{'9' * 4301}.bias": torch.zeros(24)}, "… is not expected"),
        ({"two\nlines \ud800": torch.zeros(2)}, r"two lines \ud800 is not expected"),
    ],
    ids=["embedding-0d", "output-0d", "no-rows", "layer-number", "odd-name"],
)
def test_odd_names_and_shapes_are_one_short_line(
    tmp_path: Path, change: dict[str, Tensor], message: str
) -> None:
    tensors = {**script_tensors("generate", ENWIK8), **change}
    found = refused(tmp_path, tensors, "--task", "generate", options={})
    assert message in found
    assert len(found) < 400


def test_a_bidirectional_network_is_refused_as_a_generator(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    options = {"bidirectional": True}
    assert "cannot generate" in refused(tmp_path, tensors, "--task", "generate", options=options)


@pytest.mark.parametrize("name", ["options", "vocab", "labels"])
def test_json_that_is_nested_too_deep_is_refused(tmp_path: Path, name: str) -> None:
    deep = tmp_path / "deep"
    deep.write_text("[" * 200_000 + "]" * 200_000)
    tensors = script_tensors("classify", CLASSIFIER)
    files: dict[str, Any] = {} if name == "options" else {"options": {}}
    arguments = ("--task", "classify", f"--{name}", str(deep))
    assert "no JSON of use" in refused(tmp_path, tensors, *arguments, **files)


@pytest.mark.parametrize("name", ["vocab", "labels"])
def test_words_that_utf_8_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    words = ["<oov>", "a", "\ud800", "b"] if name == "vocab" else ["a", "b", "\ud800"]
    tensors = script_tensors("classify", CLASSIFIER)
    message = refused(tmp_path, tensors, "--task", "classify", options={}, **{name: words})
    assert "JSON list of" in message


@pytest.mark.parametrize("options", [{"\ud800": 1}, {"reset_gate": "\ud800"}], ids=ascii)
def test_options_that_utf_8_cannot_hold_are_refused(tmp_path: Path, options: Any) -> None:
    refused(tmp_path, bare(LAYER), "--task", "encode", options=options)
