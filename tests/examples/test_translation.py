"""What trains the translator: its sentences, and that the server computes what the module does."""

import json
import random
from datetime import date
from itertools import islice
from pathlib import Path

import pytest
import torch

from examples.train_translate import BOS, EOS, PAD, main, tokenizer_of
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


def test_a_served_checkpoint_gives_the_scores_of_the_module(tmp_path: Path) -> None:
    torch.manual_seed(1)
    examples = list(islice(pairs(random.Random(1), False), 100))
    tokenizer = tokenizer_of(examples, 300)
    module = TransformerSRU(tokenizer.get_vocab_size(), 16, 2, 24, 2, 0.5).eval()
    for parameter in module.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    torch.save(module.checkpoint(), tmp_path / "weights.pt")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = {"bos": BOS, "eos": EOS, "pad": PAD}
    options = {"nhead": 2, "release": "2.6.0", "positions": "sinusoidal", "embedding_scale": 4.0}
    (tmp_path / "options.json").write_text(json.dumps(options | {"source": ids, "target": ids}))
    model = import_translation(
        *(tmp_path / name for name in ("weights.pt", "model", "options.json", "tokenizer.json"))
    )
    assert model.source_text is not None
    source, target = model.source_text.encode(examples[0][0]), [BOS, 40, 41, 7]
    assert source.tolist() == [BOS, *tokenizer.encode(examples[0][0]).ids, EOS]
    expected = module(source[None], torch.tensor([target]), PAD)[0].log_softmax(-1)
    ours = forced(model.translator, model.translator.encode([source]), 0, target)
    torch.testing.assert_close(ours.log_probs, expected.detach(), rtol=1e-5, atol=1e-5)


def test_the_script_writes_what_an_import_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--width", "16", "--inner", "16", "--updates", "3", "--held-out", "8"]
    arguments += ["--sentences", "200", "--vocabulary", "280"]
    monkeypatch.setattr("sys.argv", ["train_translate", "--out", str(tmp_path), *arguments])
    main()
    assert "of 8 held-out sentences exact" in capsys.readouterr().out
    model = import_translation(
        *(tmp_path / name for name in ("weights.pt", "model", "options.json", "tokenizer.json"))
    )
    assert model.translator.max_target == 48
    assert model.config.system.tied_output
