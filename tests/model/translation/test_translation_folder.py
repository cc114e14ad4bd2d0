"""Model folders of translation systems: saved, loaded, refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.model.errors import CheckpointError, ConfigError, FolderError
from sruserve.model.folder import load_model
from sruserve.model.translation.config import TranslationConfig, is_translation
from sruserve.model.translation.folder import (
    TranslationModel,
    is_translation_folder,
    load_translation,
    save_translation,
)
from tests.model.translation.systems import (
    SYSTEMS,
    config_of,
    forced,
    random_weights,
    recurrent,
    sources,
    transformer,
)
from tests.support import save_random_model

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def words(*entries: str) -> bytes:
    """A vocabulary of words."""
    numbers = {entry: i for i, entry in enumerate([*SPECIAL, *entries])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return bytes(tokenizer.to_str().encode())


def byte_pairs(texts: list[str]) -> bytes:
    """A byte-level BPE vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return bytes(tokenizer.to_str().encode())


def word_pieces() -> bytes:
    """A WordPiece vocabulary."""
    pieces = ["[UNK]", "play", "##ing", "the", "##s"]
    tokenizer = Tokenizer(
        models.WordPiece({p: i for i, p in enumerate([*SPECIAL, *pieces])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return bytes(tokenizer.to_str().encode())


def saved(
    path: Path, vocabulary: dict[str, bytes], system: Any = None, **source: int
) -> TranslationModel:
    """A random system with these vocabularies."""
    sizes = [Tokenizer.from_buffer(content).get_vocab_size() for content in vocabulary.values()]
    config = config_of(
        system or transformer(),
        source={"vocab_size": sizes[0], **source},
        target={"vocab_size": sizes[-1], "pad": 0},
    )
    return save_translation(path, config, random_weights(config), vocabulary)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    config = config_of(SYSTEMS[name])
    model = save_translation(tmp_path / "system", config, random_weights(config), {})
    again = load_translation(tmp_path / "system")
    assert (again.digest, again.config, again.name) == (model.digest, config, "system")
    assert again.parameters > 1000
    memories = [one.translator.encode(sources([7])) for one in (model, again)]
    first, second = (
        forced(one.translator, memory, 0, [1, 5, 6])
        for one, memory in zip((model, again), memories, strict=True)
    )
    assert torch.equal(first.log_probs, second.log_probs)


def test_one_vocabulary_serves_both_languages(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", {"tokenizer.json": byte_pairs(["guten Tag", "good day"] * 9)})
    assert model.source_text is not None
    assert model.target_text is not None
    ids = model.target_text.encode("guten Tag über €")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert model.target_text.decode(ids.tolist()) == "guten Tag über €"
    assert model.source_text.encode("good day").tolist() != []
    assert model.source_text.bos is None
    assert model.target_text.special == {0, 1, 2}


def test_each_language_may_have_its_own_words(tmp_path: Path) -> None:
    vocabulary = {"source.json": words("ein", "Haus"), "target.json": words("a", "house", "the")}
    model = saved(tmp_path / "m", vocabulary, bos=1, eos=2)
    assert model.source_text is not None
    assert model.target_text is not None
    assert model.source_text.encode("ein Haus nebenan").tolist() == [1, 4, 5, 3, 2]
    assert model.target_text.decode([1, 6, 5, 2, 0]) == "the house"
    assert (model.source_text.size, model.target_text.size) == (6, 7)


def test_word_pieces_are_joined(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", {"tokenizer.json": word_pieces()}, recurrent("lstm", "dot"))
    assert model.target_text is not None
    ids = model.target_text.encode("the plays playing").tolist()
    assert ids == [1, 7, 5, 8, 5, 6, 2]
    assert model.target_text.decode(ids) == "the plays playing"


def test_a_changed_folder_is_refused(tmp_path: Path) -> None:
    vocabulary = {"source.json": words("ein"), "target.json": words("a")}
    folder = saved(tmp_path / "m", vocabulary).path
    for name in ("config.json", "target.json", "model.safetensors"):
        path, content = folder / name, (folder / name).read_bytes()
        if name == "model.safetensors":
            tensors = load_file(path)
            tensors["output.bias"][0] += 1
            save_file(tensors, path, {"digest": load_translation(folder).digest})
        else:
            path.write_bytes(content.replace(b'"a"', b'"b"').replace(b'"eos": 2', b'"eos": 3'))
        with pytest.raises(FolderError, match="was changed after its import"):
            load_translation(folder)
        path.write_bytes(content)
    assert load_translation(folder).name == "m"


def test_a_folder_has_both_vocabularies_or_one_of_both(tmp_path: Path) -> None:
    vocabulary = {"source.json": words("ein"), "target.json": words("a")}
    folder = saved(tmp_path / "m", vocabulary).path
    (folder / "target.json").unlink()
    with pytest.raises(FolderError, match="a translation system has"):
        load_translation(folder)
    config = config_of(transformer())
    with pytest.raises(FolderError, match="has 5 entries, but the config"):
        save_translation(tmp_path / "n", config, random_weights(config), vocabulary)
    assert not (tmp_path / "n").exists()


def test_missing_and_misshapen_weights_are_named(tmp_path: Path) -> None:
    config = config_of(transformer())
    tensors = random_weights(config)
    del tensors["decoder.layers.1.norm3.bias"]
    tensors["output.weight"] = tensors["output.weight"][:, 1:]
    with pytest.raises(CheckpointError, match=r"norm3\.bias is missing.*output\.weight has shape"):
        save_translation(tmp_path / "m", config, tensors, {})


def test_translation_systems_and_other_models_are_distinguished(tmp_path: Path) -> None:
    config = config_of(transformer())
    system = save_translation(tmp_path / "system", config, random_weights(config), {}).path
    other = save_random_model(tmp_path / "lm", vocab_size=9)
    assert is_translation(system)
    assert not is_translation(other)
    assert is_translation_folder(system)
    assert not is_translation_folder(other)
    assert not is_translation_folder(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="describes a translation system"):
        load_model(system)
    with pytest.raises(ConfigError, match="task: Input should be 'translate'"):
        load_translation(other)


def test_a_model_folder_of_either_kind_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    config = config_of(transformer())
    folder = save_random_model(tmp_path / "m", vocab_size=9)
    (folder / "presets.json").write_text("{}")
    save_translation(folder, config, random_weights(config), {})
    save_translation(folder, config, random_weights(config, 1), {})
    assert (folder / "presets.json").read_text() == "{}"
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match=r"it holds notes\.txt"):
        save_translation(folder, config, random_weights(config), {})


def test_inspect_describes_a_system(tmp_path: Path) -> None:
    for name in ("transformer", "lstm-general"):
        config = config_of(SYSTEMS[name])
        model = save_translation(tmp_path / name, config, random_weights(config), {})
        result = CliRunner().invoke(app, ["inspect", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        for part in ("task         translate", "29 ids only", model.digest):
            assert part in result.output
    assert "lstm with general attention" in result.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"vocab_size": 29, "bos": 1}}, "target needs bos and eos"),
        ({"target": {"vocab_size": 29, "bos": 1, "eos": 29}}, r"eos \(29\) is no id"),
        ({"system": {"nhead": 3}}, "must be a multiple of nhead"),
        ({"system": {"d_model": 32}}, "is not d_model"),
        ({"system": {"sru": {"num_layers": 2}}}, "sru is one layer of one direction"),
        ({"system": {"max_source": 1 << 16, "embedding_size": 2048}}, "over the limit of"),
        ({"system": {"shared_embeddings": True}}, "needs one vocabulary"),
        (
            {"system": {"encoder_starts_decoder": True, "num_decoder_layers": 3}},
            "needs as many decoder as encoder layers",
        ),
        ({"system": {"sru": {"hidden_size": 30_000}}}, "a row of 90,000 numbers"),
        ({"system": {"type": "cnn"}}, "Input tag 'cnn'"),
        ({"format_version": 2}, "written by a newer sruserve"),
    ],
)
def test_a_config_that_fits_nothing_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = config_of(transformer())
    folder = save_translation(tmp_path / "m", config, random_weights(config), {}).path
    content = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        if name == "system" and "sru" in value:
            value = {"sru": content["system"]["sru"] | value["sru"]}
        content[name] = content["system"] | value if name == "system" else value
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        load_translation(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "cnn"}, "must be one of sru, lrn"),
        ({"input_feed": False}, r"decoder.input_size must be 10"),
        ({"source_embedding_size": 11}, "encoder.input_size must be source_embedding_size"),
        ({"tied_output": True}, "needs target embeddings as wide"),
        ({"attention": "sparse"}, "Input should be 'dot'"),
        ({"decoder": {"input_size": 0}}, "decoder.*input_size: Input should be greater"),
    ],
)
def test_recurrent_parts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    system = recurrent("lstm", "general").model_dump() | changes
    message = f"(?s){message}"
    fields = config_of(recurrent("lstm", "general")).model_dump() | {"system": system}
    with pytest.raises(ValidationError, match=message):
        TranslationConfig.model_validate(fields)
