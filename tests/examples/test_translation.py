"""What trains the translator: its sentences, and that the server computes what the module does."""

import random
from datetime import date
from itertools import islice
from pathlib import Path

import pytest
import torch

from examples.train_translate import BOS, EOS, PAD, main
from examples.translation_data import day_pair, english, german, pairs
from examples.translation_model import TransformerSRU
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
    train, test = (
        set(islice(pairs(random.Random(1), held_out), 2000)) for held_out in (False, True)
    )
    assert not train & test
    assert len({target for _, target in test}) > 500


def test_a_served_checkpoint_gives_the_scores_of_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--width", "16", "--inner", "24", "--heads", "2", "--held-out", "8"]
    arguments += ["--updates", "2", "--sentences", "200", "--vocabulary", "280"]
    monkeypatch.setattr("sys.argv", ["train_translate", "--out", str(tmp_path), *arguments])
    main()
    assert "of 8 held-out sentences exact" in capsys.readouterr().out
    files = [tmp_path / name for name in ("weights.pt", "model", "options.json", "tokenizer.json")]
    model = import_translation(files[0], files[1], files[2], files[3])
    assert model.translator.max_target == 48
    assert model.config.system.tied_output
    assert model.source_text is not None
    module = TransformerSRU(model.config.source.vocab_size, 16, 2, 24, 2, 0.0).eval()
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    weights["output_bias"] = weights.pop("output.bias")
    del weights["output.weight"]
    module.load_state_dict(weights)
    source, target = model.source_text.encode("de: 421"), [BOS, 40, 41, 7]
    assert source[[0, -1]].tolist() == [BOS, EOS]
    expected = module(source[None], torch.tensor([target]), PAD)[0].log_softmax(-1)
    ours = forced(model.translator, model.translator.encode([source]), 0, target)
    torch.testing.assert_close(ours.log_probs, expected.detach(), rtol=1e-5, atol=1e-5)
