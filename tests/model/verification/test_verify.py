"""Cases for `verify`: sequences of no steps, and files that are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.errors import CaseError
from sruserve.model.folder import Model
from sruserve.model.verification.cases import Case
from sruserve.model.verification.verify import verify
from tests.support import random_model

STEPS, BATCH = 6, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return random_model(tmp_path_factory.mktemp("m") / "m", vocab_size=9)


def ran(model: Model, lengths: list[int]) -> dict[str, Tensor]:
    """A case from our own network: its results for sequences of these lengths."""
    tokens = torch.arange(STEPS * BATCH).view(STEPS, BATCH) % 9
    states, rows = model.network.layout.allocate(BATCH), torch.arange(BATCH)
    packed = torch.cat([tokens[:n, b] for b, n in enumerate(lengths)])
    batch = RaggedBatch(torch.tensor([0, *lengths]).cumsum(0), states, rows, rows)
    results = torch.split(model.network.hidden(packed, batch), lengths)
    h = torch.full((STEPS, BATCH, model.config.rnn.output_size), torch.nan)
    for b, part in enumerate(results):
        h[: len(part), b] = part
    c_n = torch.stack(list(model.network.layout.unpack(states).values()))
    return {"tokens": tokens, "lengths": torch.tensor(lengths), "h": h, "c_n": c_n}


def case(folder: Path, tensors: dict[str, Tensor]) -> Case:
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "case.safetensors")
    return Case(folder / "case.safetensors")


@pytest.mark.parametrize("lengths", [[0, 6, 2], [1, 0, 0], [6, 5, 0]], ids=str)
def test_a_sequence_of_no_steps_agrees(tmp_path: Path, model: Model, lengths: list[int]) -> None:
    results = list(verify(model, case(tmp_path, ran(model, lengths))))
    assert len(results) == 10
    assert {difference.largest for difference in results} == {0.0}


def test_the_state_of_a_sequence_of_no_steps_is_compared(tmp_path: Path, model: Model) -> None:
    tensors = ran(model, [4, 0, 6])
    tensors["c_n"][0, 1, 5] = 0.5
    assert max(d.largest for d in verify(model, case(tmp_path, tensors))) == 0.5


def test_an_infinite_number_is_infinitely_far_from_a_finite_one(
    tmp_path: Path, model: Model
) -> None:
    tensors = ran(model, [4, 2, 6])
    tensors["h"][1, 1, 5] = torch.inf
    assert max(d.largest for d in verify(model, case(tmp_path, tensors))) == torch.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": torch.tensor([-1, 6, 6])}, "every length must be 0 to 6"),
        ({"lengths": torch.tensor([7, 6, 6])}, "every length must be 0 to 6"),
        ({"lengths": torch.tensor([0, 0, 0])}, "at least one must not be 0"),
        ({"lengths": torch.tensor([6.0, 6, 6])}, "lengths must hold integers"),
        ({"lengths": torch.tensor([torch.nan, 6, 6])}, "lengths must hold integers"),
        ({"lengths": torch.tensor([True, True, True])}, "lengths must hold integers"),
        ({"lengths": torch.tensor([6, 6])}, r"lengths has shape \[2\], not \[3\]"),
        ({"lengths": torch.tensor(6)}, r"lengths has shape \[\], not \[3\]"),
        ({"lengths": torch.tensor([[6], [6], [6]])}, "lengths has shape"),
        ({"tokens": torch.zeros(STEPS, BATCH)}, "tokens must hold integers"),
        ({"tokens": torch.full((STEPS, BATCH), torch.nan)}, "tokens must hold integers"),
        ({"tokens": torch.zeros(STEPS, BATCH, 2, dtype=torch.int64)}, "tokens \\(steps, batch\\)"),
        ({"tokens": torch.full((STEPS, BATCH), -1)}, "those of m are 0 to 8"),
        ({"tokens": torch.full((STEPS, BATCH), 9)}, "those of m are 0 to 8"),
        ({"x": torch.zeros(STEPS, BATCH, 16)}, "either x"),
        ({"tokens": None, "x": torch.zeros(STEPS, BATCH, 16)}, "must hold tokens"),
        ({"tokens": None, "x": torch.zeros(STEPS, BATCH)}, "either x"),
        ({"tokens": None}, "either x"),
        ({"h": None, "c_n": None}, "nothing to compare"),
        ({"h": torch.zeros(STEPS, BATCH, 7)}, "h has shape"),
        ({"c_n": torch.tensor(1.0)}, r"c_n has shape \[\]"),
        ({"c_0": torch.tensor(1.0)}, r"c_0 has shape \[\]"),
        ({"c_n_0": torch.tensor(1.0)}, r"c_n_0 has shape \[\]"),
        ({"h": torch.zeros(STEPS, BATCH, 24, dtype=torch.complex64)}, "h must hold real numbers"),
    ],
)
def test_a_case_that_cannot_be_run_is_refused(
    tmp_path: Path, model: Model, changes: dict[str, Any], message: str
) -> None:
    tensors = {**ran(model, [6, 6, 6]), **changes}
    with pytest.raises(CaseError, match=message):
        list(verify(model, case(tmp_path, {k: t for k, t in tensors.items() if t is not None})))
