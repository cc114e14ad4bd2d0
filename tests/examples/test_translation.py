"""What trains the translator: its sentences, and that the server computes what the module does."""

import argparse
import json
import random
from datetime import date
from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence

from examples.train_translate import BOS, EOS, PAD, Network, main, train
from examples.translation_data import day_pair, english, german, held_out, pairs
from sruserve.model.importers.translation.build import import_translation
from tests.model.translation.systems import forced

WORDS = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    16: ("sixteen", "sechzehn"),
    21: ("twenty-one", "einundzwanzig"),
    80: ("eighty", "achtzig"),
    101: ("one hundred one", "einhunderteins"),
    777: ("seven hundred seventy-seven", "siebenhundertsiebenundsiebzig"),
    1000: ("one thousand", "eintausend"),
    9030: ("nine thousand thirty", "neuntausenddreißig"),
}


@pytest.mark.parametrize("number", WORDS)
def test_numbers_are_spelled_as_people_spell_them(number: int) -> None:
    assert (english(number), german(number)) == WORDS[number]


def test_dates_have_four_spellings() -> None:
    sources = [day_pair(date(2021, 3, 5), spelling) for spelling in range(4)]
    assert [source for source, _ in sources] == [
        "iso: March 5, 2021",
        "iso: 5 March 2021",
        "iso: 5. März 2021",
        "iso: 5.3.2021",
    ]
    assert {target for _, target in sources} == {"2021-03-05"}


def test_the_evaluation_has_sentences_of_its_own() -> None:
    train = set(islice(pairs(random.Random(1)), 20_000))
    test = held_out()
    assert {kind: len(examples) for kind, examples in test.items()} == {
        "en": 530, "de": 530, "iso": 17_176,
    }  # fmt: skip
    assert all(source.startswith(f"{kind}: ") for kind in test for source, _ in test[kind])
    # A number or day that is held out in one language or spelling is held out in all.
    seen = {source.partition(": ")[2] for source, _ in train} | {target for _, target in train}
    for source, target in (pair for examples in test.values() for pair in examples):
        assert not {source.partition(": ")[2], target} & seen


@pytest.mark.parametrize("network", ["recurrent", "transformer"])
def test_a_served_checkpoint_gives_the_scores_of_the_module(
    network: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--network", network, "--width", "16", "--inner", "24", "--heads", "2"]
    arguments += ["--updates", "2", "--sentences", "200", "--vocabulary", "280", "--held-out", "3"]
    monkeypatch.setattr("sys.argv", ["train_translate", "--out", str(tmp_path), *arguments])
    modules: list[Network] = []

    def training(args: argparse.Namespace) -> tuple[Network, Tokenizer]:
        module, tokenizer = train(args)
        modules.append(module)
        return module, tokenizer

    monkeypatch.setattr("examples.train_translate.train", training)
    main()
    assert "en: 0 of 3 held-out sentences exact" in capsys.readouterr().out
    reference = json.loads((tmp_path / "reference.json").read_text())
    assert reference["de"]["sentences"] == 3
    assert list(reference["de"]["wrong"]) == ["de: 1006", "de: 1023", "de: 1040"]
    files = [tmp_path / name for name in ("weights.pt", "model", "options.json", "tokenizer.json")]
    model = import_translation(files[0], files[1], files[2], files[3])
    assert model.translator.max_target == 48
    assert model.config.system.tied_output
    assert model.source_text is not None
    sources = [model.source_text.encode(text) for text in ("de: 421", "iso: 5. März 2021")]
    assert sources[0][[0, -1]].tolist() == [BOS, EOS]
    memory, target = model.translator.encode(sources), [BOS, 40, 41, 7]
    padded = pad_sequence(sources, batch_first=True, padding_value=PAD)
    padding = padded == PAD
    expected = modules[0].decode(
        modules[0].encode(padded, padding), padding, torch.tensor([target, target])
    )
    for row in range(2):
        ours = forced(model.translator, memory, row, target)
        scores = expected[row].log_softmax(-1).detach()
        torch.testing.assert_close(ours.log_probs, scores, rtol=1e-5, atol=1e-5)
