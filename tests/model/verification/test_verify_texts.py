"""`verify` compares ids, labels and probabilities of texts with those of the training pipeline."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.kernels import single
from sruserve.model.errors import CaseError
from sruserve.model.folder import Model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.verification.coverage import coverage
from sruserve.model.verification.text_cases import TextCase
from sruserve.model.verification.verify import Difference
from sruserve.model.verification.verify_texts import Mismatch, verify_texts
from tests.support import random_model

WORDS = {"<unk>": 0, "the": 1, "cat": 2, "sat": 3, "on": 4}
TEXT = "the cat sat"


def words() -> bytes:
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return str(tokenizer.to_str()).encode()


def classifier(folder: Path, task: Any = "classify", **config: Any) -> Model:
    return random_model(folder, task, vocabulary=words(), vocab_size=5, **config)


def case(folder: Path, *entries: Any) -> TextCase:
    (folder / "case.json").write_text(json.dumps(entries))
    return TextCase(folder / "case.json")


def probabilities(model: Model, *ids: int) -> list[float]:
    """Of a classifier that reads the last output."""
    states = model.network.layout.allocate(1)
    hidden = model.network.hidden(torch.tensor(ids), single(states, len(ids)))
    answer: list[float] = model.network.logits(hidden[-1:]).softmax(-1)[0].tolist()
    return answer


def best(model: Model, numbers: list[float]) -> str:
    return model.labels[numbers.index(max(numbers))]


def test_texts_agree_with_their_own_ids_labels_and_probabilities(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m")
    numbers = probabilities(model, 1, 2, 3)
    entries = [
        {"text": TEXT, "ids": [1, 2, 3], "label": best(model, numbers), "probabilities": numbers},
        {"text": TEXT, "probabilities": dict(zip(model.labels, numbers, strict=True))},
        {"ids": [1, 2, 3], "label": best(model, numbers)},
    ]
    findings = list(verify_texts(model, case(tmp_path, *entries)))
    assert not [finding for finding in findings if isinstance(finding, Mismatch)]
    assert max(f.largest for f in findings if isinstance(f, Difference)) < 1e-6
    assert {f.run for f in findings} == {"whole", *(f"split {i}" for i in range(1, 5))}


def test_other_ids_are_shown_from_the_first_difference_on(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m")
    (mismatch,) = verify_texts(model, case(tmp_path, {"text": "the Cat sat", "ids": [1, 2, 3]}))
    shown = ("…, 0, 3", "…, 2, 3")
    ours, theirs = (f"[{ids}] (3 ids)" for ids in shown)
    assert mismatch == Mismatch("whole", "ids", "'the Cat sat'", ours, theirs)


def test_missing_ids_are_a_difference(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m")
    (mismatch,) = verify_texts(model, case(tmp_path, {"text": TEXT, "ids": [1, 2, 3, 0]}))
    assert isinstance(mismatch, Mismatch)
    assert (mismatch.ours, mismatch.theirs) == ("[…, ] (3 ids)", "[…, 0] (4 ids)")


def test_another_label_is_a_difference_with_the_text_shortened(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m")
    own = best(model, probabilities(model, *[1] * 99))
    other = next(label for label in model.labels if label != own)
    findings = list(verify_texts(model, case(tmp_path, {"text": "the " * 99, "label": other}), 0))
    (wrong,) = findings
    assert isinstance(wrong, Mismatch)
    assert (wrong.tensor, wrong.ours, wrong.theirs) == ("label", own, other)
    assert wrong.text.startswith("'the the")
    assert len(wrong.text) == 60


def test_probabilities_by_name_may_be_some_of_them(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m")
    numbers = probabilities(model, 1, 2, 3)
    entry = {"text": TEXT, "probabilities": {model.labels[2]: numbers[2] + 0.25}}
    findings = list(verify_texts(model, case(tmp_path, entry)))
    assert [round(f.largest, 5) for f in findings if isinstance(f, Difference)] == [0.25] * 5


def test_pairs_are_compared(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m", "pair", head=HeadConfig(pooling="max"))
    ids = [[1, 2, 3], [4, 0]]
    states = model.network.layout.allocate(1)
    rows = [model.network.hidden(torch.tensor(x), single(states * 0, len(x))) for x in ids]
    scores = model.network.compare(torch.cat(rows), [3, 2]).softmax(-1)[0].tolist()
    entry = {"text": TEXT, "pair": "on unknown", "ids": ids[0], "pair_ids": ids[1]}
    (_, _, difference) = verify_texts(model, case(tmp_path, {**entry, "probabilities": scores}))
    assert isinstance(difference, Difference)
    assert difference.largest < 1e-6
    swapped = {"text": "on unknown", "pair": TEXT, "probabilities": scores}
    (difference,) = verify_texts(model, case(tmp_path, swapped))
    assert isinstance(difference, Difference)
    assert difference.largest > 1e-4


def test_the_labels_of_each_token_are_compared(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m", "tag")
    states = model.network.layout.allocate(1)
    scores = model.network.logits(model.network.hidden(torch.tensor([1, 2, 3]), single(states, 3)))
    labels = [model.labels[i] for i in scores.argmax(-1).tolist()]
    findings = list(verify_texts(model, case(tmp_path, {"text": TEXT, "labels": labels})))
    assert not any(isinstance(finding, Mismatch) for finding in findings)
    wrong = [*labels[:-1], next(label for label in model.labels if label != labels[-1])]
    findings = list(verify_texts(model, case(tmp_path, {"text": TEXT, "labels": wrong})))
    assert [finding.theirs for finding in findings if isinstance(finding, Mismatch)] == [
        ", ".join(wrong)
    ] * 5


def test_the_ids_around_a_text_and_its_truncation_are_those_of_the_server(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(words().decode())
    template = "<unk> $A on"
    tokenizer.post_processor = TemplateProcessing(template, None, [("<unk>", 0), ("on", 4)])
    tokenizer.enable_truncation(4)
    content = tokenizer.to_str().encode()
    model = random_model(tmp_path / "m", "classify", vocabulary=content, vocab_size=5)
    ids = tokenizer.encode(TEXT).ids
    assert ids == [0, 1, 2, 4]
    entry = {"text": TEXT, "ids": ids, "probabilities": probabilities(model, *ids)}
    findings = list(verify_texts(model, case(tmp_path, entry)))
    assert not any(isinstance(finding, Mismatch) for finding in findings)
    assert max(f.largest for f in findings if isinstance(f, Difference)) < 1e-6


def test_the_labels_of_a_crf_are_those_of_its_best_path(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m", "tag", head=HeadConfig(crf=True))
    states, crf = model.network.layout.allocate(1), model.network.crf
    ids = torch.tensor([1, 2, 3, 4, 2, 1])
    scores = model.network.logits(model.network.hidden(ids, single(states, 6)))
    assert crf is not None
    path = crf.decode(scores).tolist()
    assert path != scores.argmax(-1).tolist()
    entry = {"ids": ids.tolist(), "labels": [model.labels[i] for i in path]}
    findings = list(verify_texts(model, case(tmp_path, entry)))
    assert all(isinstance(finding, Difference) for finding in findings)
    assert {finding.run for finding in findings} > {"whole"}  # and splits, as it streams


@pytest.mark.parametrize("text", ["", "  "])
def test_a_text_that_the_server_would_refuse_is_a_difference(tmp_path: Path, text: str) -> None:
    model = classifier(tmp_path / "m")
    (mismatch,) = verify_texts(model, case(tmp_path, {"text": text, "label": model.labels[0]}))
    assert isinstance(mismatch, Mismatch)
    assert (mismatch.tensor, mismatch.ours) == ("text", "refused: it has no ids")


def test_a_text_that_the_vocabulary_cannot_express_is_a_difference(tmp_path: Path) -> None:
    model = random_model(tmp_path / "m", "classify", vocabulary=[97, 98])
    (mismatch,) = verify_texts(model, case(tmp_path, {"text": "abc", "label": model.labels[0]}))
    assert isinstance(mismatch, Mismatch)
    assert "refused: the model's vocabulary has no 'c'" in mismatch.ours


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"label": "yes"}, "needs a text, or ids"),
        ({"text": "a"}, "has nothing to compare"),
        ({"text": "a", "probabilities": {}}, "has the probabilities of no label"),
        ({"text": "a", "lable": "yes"}, "lable"),
        ({"text": "a", "label": "never"}, "there is no label 'never'; the labels are yes, no"),
        ({"text": "a", "probabilities": {"never": 1}}, "there is no label 'never'"),
        ({"text": "a", "probabilities": [0.5, 0.5]}, "has 2 numbers; the model has 3 outputs"),
        ({"text": "a", "probabilities": [0.5, "x", 0.5]}, "probabilities"),
        ({"text": "a", "labels": ["yes"]}, "labels is for task tag, not for task classify"),
        ({"text": "a", "values": [1.0]}, "values is for task regress"),
        ({"text": "a", "pair": "b", "label": "yes"}, "m reads one input"),
        ({"text": "a", "ids": [5]}, "it holds the id 5; those of m are 0 to 4"),
        ({"text": "a", "ids": [-1]}, "ids"),
        ({"ids": [], "label": "yes"}, "it has no ids"),
        ({"ids": [1], "pair_ids": [1], "label": "yes"}, "m reads one input"),
    ],
)
def test_an_entry_that_does_not_fit_is_named(tmp_path: Path, entry: Any, message: str) -> None:
    model = classifier(tmp_path / "m")
    with pytest.raises(CaseError, match=message) as caught:
        list(verify_texts(model, case(tmp_path, entry)))
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_a_model_that_reads_no_texts_says_so(tmp_path: Path) -> None:
    entry = {"text": "a", "label": "yes"}
    for size, message in ((None, "reads features"), (9, "reads ids alone")):
        model = random_model(tmp_path / f"m{size}", "classify", vocab_size=size)
        with pytest.raises(CaseError, match=message):
            list(verify_texts(model, case(tmp_path, entry)))
    pairs = classifier(tmp_path / "pairs", "pair")
    with pytest.raises(CaseError, match="compares two inputs: add a pair"):
        list(verify_texts(pairs, case(tmp_path, entry)))


@pytest.mark.parametrize("content", ["", "{}", "[]", "[[]]", "[" * 100_000, '{"text": "a"}'])
def test_a_file_that_is_no_list_of_texts_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "case.json").write_text(content)
    with pytest.raises(CaseError, match="not a case of texts"):
        TextCase(tmp_path / "case.json")


def test_a_case_of_texts_says_what_it_does_not_check(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m")
    for entry, unchecked in (
        (
            {"text": "a", "ids": [1]},
            ["embedding", "stack", "end state", "pooling", "head", "labels"],
        ),
        ({"text": "a", "probabilities": [1, 0, 0]}, ["end state", "labels"]),
        ({"text": "a", "label": "yes"}, ["end state"]),
        ({"ids": [1], "label": "yes"}, ["tokenizer", "end state"]),
    ):
        assert coverage(model, case(tmp_path, entry))[1] == unchecked


def verify(model: Model, path: Path, *options: str) -> Any:
    return CliRunner().invoke(
        app, ["verify", str(model.path), str(path), "--device", "cpu", *options]
    )


def test_the_command_prints_what_differs_and_what_it_did_not_check(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m")
    numbers = probabilities(model, 1, 2, 3)
    label = best(model, numbers)
    right = {"text": TEXT, "ids": [1, 2, 3], "label": label, "probabilities": numbers}
    case(tmp_path, right)
    result = verify(model, tmp_path / "case.json")
    assert result.exit_code == 0, result.output
    assert "ids        1 of 1 equal\nprobabilities largest difference" in result.output
    assert "label      5 of 5 equal\nchecked: tokenizer, embedding, stack" in result.output
    assert "not checked: end state\nagrees: largest difference" in result.output
    case(tmp_path, right, {"text": "the Cat\x1b[2J", "ids": [1, 2], "label": label})
    result = verify(model, tmp_path / "case.json", "--splits", "0")
    assert result.exit_code == 1
    assert "ids        1 of 2 equal" in result.output
    assert (
        r"ids of 'the Cat\x1b[2J' (whole): […, 0] (2 ids); expected […, 2] (2 ids)" in result.output
    )
    assert "DIFFERS: " in result.output
    case(tmp_path, {**right, "probabilities": [*numbers[:2], numbers[2] + 1e-3]})
    result = verify(model, tmp_path / "case.json")
    assert result.exit_code == 1
    assert "DIFFERS (probabilities, whole): largest difference 0.001" in result.output
