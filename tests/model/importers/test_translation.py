"""Importing translation systems: the command, vocabularies, special ids, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.model.errors import CheckpointError, ModelError, OptionError
from sruserve.model.importers.translation.build import import_translation
from sruserve.model.translation.folder import TranslationModel, load_translation

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "translation"
LSTM, PLAIN = GOLDEN / "opennmt-lstm-general", GOLDEN / "flambe-plain"
SOURCE = ["<unk>", "<blank>", *(f"quelle{i}" for i in range(17))]
TARGET = ["<unk>", "<blank>", "<s>", "</s>", *(f"ziel{i}" for i in range(19))]


def weights_of(case: Path) -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = torch.load(case / "weights.pt", weights_only=True)
    return loaded


def options_of(case: Path) -> dict[str, Any]:
    described = json.loads((case / "case.json").read_text())
    options: dict[str, Any] = described["options"]
    return options


def imported(
    folder: Path, tensors: dict[str, Tensor], options: dict[str, Any], **arguments: Any
) -> TranslationModel:
    """The model of changed tensors and options."""
    torch.save(tensors, folder / "weights.pt")
    (folder / "options.json").write_text(json.dumps(options))
    return import_translation(
        folder / "weights.pt", folder / "model", folder / "options.json", **arguments
    )


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_the_command_writes_a_system_with_both_vocabularies(tmp_path: Path) -> None:
    arguments = ["import", str(LSTM / "weights.pt"), str(tmp_path / "nmt"), "--task", "translate"]
    arguments += ["--vocab", str(written(tmp_path / "source.json", SOURCE))]
    result = CliRunner().invoke(
        app, [*arguments, "--target-vocab", str(written(tmp_path / "target.json", TARGET))]
    )
    assert result.exit_code == 0, result.output
    assert (
        "assumed: source pad 1, source unk 0, target bos 2, target eos 3, target pad 1, "
        "target unk 0"
    ) in " ".join(result.output.split())
    model = load_translation(tmp_path / "nmt")
    assert model.source_text is not None
    assert model.target_text is not None
    assert model.source_text.encode("quelle3 sonst").tolist() == [5, 0]
    assert model.target_text.decode([2, 4, 6, 3]) == "ziel0 ziel2"


def test_special_ids_are_stated_as_ids_or_entries(tmp_path: Path) -> None:
    options = options_of(LSTM) | {"source": {"eos": 5}, "target": {"bos": "ziel0", "eos": "</s>"}}
    assumed: list[str] = []
    model = imported(
        tmp_path,
        weights_of(LSTM),
        options,
        vocab=written(tmp_path / "source.json", SOURCE),
        target_vocab=written(tmp_path / "target.json", TARGET),
        assume=assumed.append,
    )
    assert model.config.source.eos == 5
    assert (model.config.target.bos, model.config.target.eos) == (4, 3)
    assert assumed == ["source pad 1", "source unk 0", "target pad 1", "target unk 0"]


def test_ids_that_a_tokenizer_adds_by_itself_are_not_used_and_warned_of(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(SOURCE)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing("$A quelle1", special_tokens=[("quelle1", 3)])
    tokenizer.save(str(tmp_path / "source.json"))
    warnings: list[str] = []
    model = imported(
        tmp_path,
        weights_of(LSTM),
        options_of(LSTM),
        vocab=tmp_path / "source.json",
        target_vocab=written(tmp_path / "target.json", TARGET),
        warn=warnings.append,
    )
    assert model.source_text is not None
    assert model.source_text.encode("quelle3").tolist() == [5]
    assert "adds ids around a text or truncates it" in warnings[0]


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    tensors = weights_of(GOLDEN / "opennmt-lstm-unfed")
    model = imported(tmp_path, tensors, options_of(GOLDEN / "opennmt-lstm-unfed"))
    assert model.config.system.shared_embeddings
    tensors = weights_of(PLAIN)
    tensors["output.weight"] = tensors["target_embedding.token_embedding.weight"]
    model = imported(tmp_path, tensors, options_of(PLAIN))
    assert model.config.system.tied_output
    assert not model.config.system.shared_embeddings


def test_the_whole_embedding_may_have_one_name(tmp_path: Path) -> None:
    tensors = weights_of(PLAIN)
    for part in ("token_embedding", "pos_embedding"):
        tensors[f"embedding.{part}.weight"] = tensors.pop(f"target_embedding.{part}.weight")
        del tensors[f"source_embedding.{part}.weight"]
    model = imported(tmp_path, tensors, options_of(PLAIN))
    assert model.config.system.shared_embeddings
    assert model.config.source.vocab_size == 23


def test_layers_of_an_sru_of_2017_are_read_as_those(tmp_path: Path) -> None:
    """OpenNMT-py's own SRU runs on a GPU alone, so its formulas are those of that release."""
    tensors = {
        name: tensor
        for name, tensor in weights_of(GOLDEN / "opennmt-lstm-unfed").items()
        if ".rnn." not in name
    }
    for side, width in (("encoder", 12), ("decoder", 12)):
        for layer in range(2):
            inputs, blocks = (width, 4) if layer == 0 else (16, 3)
            tensors[f"{side}.rnn.rnn_lst.{layer}.weight"] = torch.randn(inputs, blocks * 16) / 4
            tensors[f"{side}.rnn.rnn_lst.{layer}.bias"] = torch.randn(32)
    options = options_of(GOLDEN / "opennmt-lstm-unfed")
    with pytest.raises(OptionError, match='"encoder_type" is not stored'):
        imported(tmp_path, tensors, options)
    model = imported(tmp_path, tensors, options | {"encoder_type": "rnn"})
    assert model.translator.state_width == 32
    two_ways = imported(tmp_path, tensors, options | {"encoder_type": "brnn"})
    assert two_ways.translator.state_width == 32
    assert model.digest != two_ways.digest


@pytest.mark.parametrize(
    ("case", "added", "what"),
    [
        (LSTM, "decoder.copy_attn.linear_in.weight", "copy attention"),
        (LSTM, "decoder.attn.linear_cover.weight", "coverage"),
        (LSTM, "decoder.context_gate.gate.weight", "a context gate"),
        (LSTM, "encoder.bridge.0.weight", "depend on the other sources"),
        (LSTM, "encoder.embeddings.make_embedding.emb_luts.1.weight", "features beside"),
        (LSTM, "encoder.rnn.extra", "is not expected"),
        (LSTM, "decoder.other.weight", "belong to no part"),
        (PLAIN, "decoder.layers.0.linear1.weight", "is not expected"),
    ],
)
def test_a_system_with_another_part_is_refused_by_its_name(
    case: Path, added: str, what: str, tmp_path: Path
) -> None:
    tensors = weights_of(case) | {added: torch.zeros(3, 3)}
    with pytest.raises(CheckpointError, match=what):
        imported(tmp_path, tensors, options_of(case))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (LSTM, {"target": {"bos": 2}}, '"eos" of the target is not stored'),
        (LSTM, {"target": {"bos": "<s>", "eos": 3}}, "must be an id, or an entry"),
        (LSTM, {"target": {"bos": 2, "eos": 30}}, "is no id: vocab_size is 23"),
        (LSTM, {"target": [2, 3]}, "it must be an object of ids"),
        (LSTM, {"global_attention_function": "sparsemax"}, "softmax is served"),
        (LSTM, {"coverage_attn": True}, "coverage_attn is true, which is not served"),
        (LSTM, {"bridge": True}, "bridge is true, which is not served"),
        (LSTM, {"beam_size": 5}, "beam_size is unknown"),
        (PLAIN, {"nhead": None}, "nhead: Input should be a valid integer"),
        (PLAIN, {"nhead": 3}, "must be a multiple of nhead"),
        (PLAIN, {"bidirectional": True}, "SRU layers of encoder and decoder differ"),
        (PLAIN, {"positions": "sinusoidal"}, "but the weights have learned positions"),
        (GOLDEN / "flambe-started", {"positions": None}, '"positions" is not stored'),
    ],
)
def test_an_option_that_does_not_fit_is_refused(
    case: Path, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        imported(tmp_path, weights_of(case), options_of(case) | options)


def test_weights_of_other_models_and_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="are those of no known translation system"):
        imported(tmp_path, {"rnn_lst.0.weight": torch.zeros(2, 6)}, {})
    with pytest.raises(OptionError, match="has no translation systems; use one of flambe"):
        imported(tmp_path, weights_of(LSTM), options_of(LSTM), format="sru")
    for extra in (["--format", "flambe", "--task", "generate"], ["--task", "translate"]):
        (tmp_path / "labels.json").write_text("[]")
        labels = ["--labels", str(tmp_path / "labels.json")] if "generate" not in extra else []
        result = CliRunner().invoke(
            app, ["import", str(LSTM / "weights.pt"), str(tmp_path / "x"), *extra, *labels]
        )
        assert result.exit_code == 1
        message = "--labels is for classes" if labels else "add --task translate"
        assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_vocab": TARGET}, "--target-vocab needs --vocab"),
        ({"vocab": SOURCE}, "add --target-vocab"),
        ({"vocab": list(range(19)), "target_vocab": TARGET}, "no vocabulary of bytes"),
        ({"vocab": TARGET, "target_vocab": TARGET}, "has 23 entries, but the embedding has 19"),
        ({"lowercase": True}, "--lowercase concerns texts"),
    ],
)
def test_vocabularies_that_do_not_fit_are_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    files = {
        name: written(tmp_path / f"{name}.json", content) if isinstance(content, list) else content
        for name, content in arguments.items()
    }
    with pytest.raises(OptionError, match=message):
        imported(tmp_path, weights_of(LSTM), options_of(LSTM), **files)


def test_a_diverged_training_run_is_refused(tmp_path: Path) -> None:
    tensors = weights_of(LSTM)
    tensors["generator.0.bias"][0] = torch.nan
    with pytest.raises(CheckpointError, match="some numbers are NaN"):
        imported(tmp_path, tensors, options_of(LSTM))
