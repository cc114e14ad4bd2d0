"""The reader's example trains, is imported, and answers about names that it never saw."""

import random
import sys
from pathlib import Path

import pytest
import torch

import sruserve
from examples import train_reader as example
from examples.train_reader import NEW_NAMES, made_up, tensors_of
from sruserve.model.importers.build import import_checkpoint

SIZES = ["--width", "12", "--hidden", "12", "--layers", "1"]
RIGHT = 0.7  # of a reader this small; the example's own reaches 0.95


@torch.no_grad()
def test_the_imported_reader_gives_the_answers_of_the_trained_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--out", str(tmp_path), "--updates", "150", "--tested", "1", *SIZES]
    monkeypatch.setattr(sys, "argv", ["train_reader", *command])
    with torch.enable_grad():
        example.main()
    assert "exact match" in capsys.readouterr().out
    import_checkpoint(tmp_path / "reader.pt", tmp_path / "reader", "answer")
    saved = torch.load(tmp_path / "reader.pt")
    trained = example.Reader(len(saved["word_dict"]), 12, 12, 1)
    trained.load_state_dict(saved["state_dict"])
    draw, right = random.Random(5), 0
    samples = [text for _ in range(60) for text in made_up(1, NEW_NAMES, draw)]
    with sruserve.load(tmp_path / "reader") as model:
        answers = model.answer(
            [" ".join(each.question) for each in samples],
            [" ".join(each.words) for each in samples],
        )
    for each, ours in zip(samples, answers, strict=True):
        start, end = trained(*tensors_of([each], saved["word_dict"], 0.0, draw))
        spans = (start.softmax(1).T @ end.softmax(1)).triu().tril(14)
        assert ours.best.score == pytest.approx(float(spans.max()), abs=1e-5)
        right += ours.best.text == " ".join(each.words[each.first : each.last + 1])
    assert right / len(samples) >= RIGHT
