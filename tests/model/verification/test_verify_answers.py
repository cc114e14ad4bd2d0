"""`verify` compares what a classifier or regressor answers for whole sequences."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sruserve.model.errors import CaseError
from sruserve.model.folder import Model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.verification.cases import Case
from sruserve.model.verification.coverage import coverage
from sruserve.model.verification.verify import Difference, verify
from tests.model.importers.running import imported
from tests.support import random_model

STEPS, BATCH, WIDTH, HIDDEN = 9, 4, 5, 12
LENGTHS = [9, 1, 4, 7]
FINAL = {"pooling": "final", "final": ("1.c",)}


class Classifier(nn.Module):
    """A recurrent module and a linear layer, with a pooling between them."""

    def __init__(self, pooling: str, bidirectional: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.pooling = pooling
        self.rnn: Any = nn.LSTM(WIDTH, HIDDEN, 2, bidirectional=bidirectional)
        width = HIDDEN * (2 if bidirectional else 1)
        self.fc = nn.Linear(2 * width if pooling == "all" else width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (classes) of one sequence (steps, features)."""
        h, (h_n, _) = self.rnn(x)
        poolings: dict[str, Callable[[], Tensor]] = {
            "last": lambda: h[-1],
            "mean": lambda: h.mean(0),
            "max": lambda: h.max(0).values,
            "final": lambda: torch.cat(list(h_n[-2:] if self.rnn.bidirectional else h_n[-1:])),
            "all": lambda: torch.cat(list(h_n)),
        }
        logits: Tensor = self.fc(poolings[self.pooling]())
        return logits


def saved(folder: Path, **tensors: Tensor) -> Case:
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "case.safetensors")
    return Case(folder / "case.safetensors")


def inputs() -> dict[str, Tensor]:
    x = torch.randn(STEPS, BATCH, WIDTH, generator=torch.Generator().manual_seed(7))
    return {"x": x, "lengths": torch.tensor(LENGTHS)}


@torch.inference_mode()
def answered(module: nn.Module, results: str = "logits") -> dict[str, Tensor]:
    own = inputs()
    logits = torch.stack([module(own["x"][:n, b]) for b, n in enumerate(LENGTHS)])
    return {**own, results: logits if results == "logits" else logits.softmax(-1)}


def import_as(folder: Path, module: nn.Module, pooling: str) -> Model:
    folder.mkdir()
    options = {"pooling": "final" if pooling == "all" else pooling}
    return imported(folder, dict(module.state_dict()), "classify", options=options)


def worst(differences: Iterable[Difference]) -> float:
    return max(difference.largest for difference in differences)


@pytest.mark.parametrize("results", ["logits", "probabilities"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("pooling", ["last", "mean", "max", "final", "all"])
def test_the_answers_of_a_module_agree_with_every_pooling(
    tmp_path: Path, pooling: str, bidirectional: bool, results: str
) -> None:
    module = Classifier(pooling, bidirectional)
    model = import_as(tmp_path / "m", module, pooling)
    differences: list[Difference] = list(
        verify(model, saved(tmp_path, **answered(module, results)))
    )
    assert worst(differences) <= 1e-5
    assert len(differences) == (1 if bidirectional else 5)


@pytest.mark.parametrize(
    ("trained", "served"), [("final", "last"), ("last", "final"), ("mean", "max"), ("max", "last")]
)
def test_the_wrong_pooling_of_a_bidirectional_classifier_differs(
    tmp_path: Path, trained: str, served: str
) -> None:
    module = Classifier(trained, bidirectional=True)
    model = import_as(tmp_path / "m", module, served)
    assert worst(verify(model, saved(tmp_path, **answered(module)))) > 1e-3


def test_the_outputs_of_the_stack_are_compared_under_a_pooling(tmp_path: Path) -> None:
    module = Classifier("mean", bidirectional=False)
    model = import_as(tmp_path / "m", module, "mean")
    own = inputs()
    with torch.inference_mode():
        h = module.rnn(own["x"])[0]
    assert worst(verify(model, saved(tmp_path, **own, h=h))) <= 1e-5
    assert worst(verify(model, saved(tmp_path, **own, h=h + 1e-3))) >= 9e-4


def test_a_sequence_without_steps_has_no_answer(tmp_path: Path) -> None:
    module = Classifier("max", bidirectional=False)
    model = import_as(tmp_path / "m", module, "max")
    tensors = {name: tensor.clone() for name, tensor in answered(module).items()}
    tensors["lengths"][1] = 0
    tensors["logits"][1] = torch.nan
    assert worst(verify(model, saved(tmp_path, **tensors))) <= 1e-5


def test_the_values_of_a_regressor_are_compared(tmp_path: Path) -> None:
    module = Classifier("mean", bidirectional=False)
    tensors, options = dict(module.state_dict()), {"pooling": "mean"}
    model = imported(tmp_path, tensors, "regress", options=options, labels=["a", "b", "c"])
    values = answered(module)
    values["values"] = values.pop("logits")
    assert worst(verify(model, saved(tmp_path, **values))) <= 1e-5
    values["values"] = values["values"] * 1.01
    assert worst(verify(model, saved(tmp_path, **values))) > 1e-4


@pytest.mark.parametrize(
    ("task", "head", "results", "message"),
    [
        ("classify", {}, {"logits": (BATCH, 4)}, r"m needs \[9, 4, 3\] or \[4, 3\]"),
        ("classify", {}, {"values": (BATCH, 3)}, "m answers with logits or probabilities"),
        ("classify", FINAL, {"logits": (STEPS, BATCH, 3)}, r"m needs \[4, 3\]"),
        ("classify", {"activation": "sigmoid"}, {"log_probs": (BATCH, 3)}, "m has no softmax"),
        ("tag", {}, {"logits": (BATCH, 3)}, r"m needs \[9, 4, 5\]"),
        ("encode", {}, {"probabilities": (BATCH, 3)}, "m has no head"),
    ],
)
def test_answers_that_the_model_does_not_give_are_refused(
    tmp_path: Path, task: Any, head: dict[str, Any], results: dict[str, Any], message: str
) -> None:
    model = random_model(tmp_path / "m", task, head=HeadConfig(**head))
    x = torch.zeros(STEPS, BATCH, 16)
    case = saved(tmp_path, x=x, **{name: torch.zeros(shape) for name, shape in results.items()})
    with pytest.raises(CaseError, match=message):
        list(verify(model, case))


def test_a_case_says_what_it_does_not_check(tmp_path: Path) -> None:
    model = random_model(tmp_path / "m", "classify", vocabulary=list(range(97, 107)))
    states = torch.zeros(2, 1, 24)
    tokens = {"tokens": torch.zeros(3, 1, dtype=torch.int64)}
    for results, unchecked in (
        ({"c_n": states}, ["tokenizer", "pooling", "head", "labels"]),
        ({"h": torch.zeros(3, 1, 24)}, ["tokenizer", "end state", "pooling", "head", "labels"]),
        ({"logits": torch.zeros(3, 1, 3)}, ["tokenizer", "end state", "pooling", "labels"]),
        ({"logits": torch.zeros(1, 3)}, ["tokenizer", "end state", "labels"]),
        ({"logits": torch.zeros(1, 3), "c_n": states}, ["tokenizer", "labels"]),
    ):
        assert coverage(model, saved(tmp_path, **tokens, **results))[1] == unchecked
