from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
from torch import Tensor

from sruserve.kernels.slots import WINDOW, DecodeInputs, Slots
from sruserve.kernels.triton.sample import sample_rows, triton_sample
from sruserve.kernels.triton.tiles import SAMPLE_VOCABULARY
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.sampling.sampler import Sampler
from sruserve.server.engine.sampling.uniforms import uniforms

GREEDY = Sampling(temperature=0.0)
KINDS = {
    "greedy": GREEDY,
    "plain": Sampling(),
    "warm": Sampling(temperature=1.7),
    "nearly greedy": Sampling(temperature=1e-38),
    "top_k": Sampling(top_k=3),
    "top_k beyond all": Sampling(top_k=10**6),
    "top_p": Sampling(top_p=0.6),
    "top_p of nothing": Sampling(top_p=0.0),
    "min_p": Sampling(min_p=0.3),
    "min_p of the best": Sampling(min_p=1.0),
    "penalty": Sampling(repetition_penalty=1.5),
    "reward": Sampling(repetition_penalty=0.5),
    "greedy penalty": Sampling(temperature=0.0, repetition_penalty=3.0),
    "all": Sampling(temperature=0.8, top_k=4, top_p=0.9, min_p=0.1, repetition_penalty=1.2),
}


@dataclass
class Rows:
    """The arguments of `sample_rows` for some streams."""

    uniforms: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor
    window: Tensor
    position: Tensor
    out: Tensor
    history: Tensor

    def sample(self, logits: Tensor) -> Tensor:
        sample_rows(logits, **{field.name: getattr(self, field.name) for field in fields(self)})
        return self.out


def rows_of(
    sampling: Sequence[Sampling], windows: Sequence[Sequence[int]], uniforms: np.ndarray
) -> Rows:
    window = torch.full((len(sampling), WINDOW), -1)
    for row, tokens in zip(window, windows, strict=True):
        row[WINDOW - len(tokens) :] = torch.tensor(tokens, dtype=torch.int64)
    streams = len(sampling)
    return Rows(
        torch.from_numpy(uniforms),
        torch.tensor([s.temperature for s in sampling]),
        torch.tensor([s.top_k for s in sampling], dtype=torch.int32),
        torch.tensor([s.top_p for s in sampling]),
        torch.tensor([s.min_p for s in sampling]),
        torch.tensor([s.repetition_penalty for s in sampling]),
        window,
        torch.zeros(streams, dtype=torch.int64),
        torch.full((streams,), -7),
        torch.full((len(uniforms), streams), -7),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [1, 5, 95])
def test_a_burst_picks_the_tokens_that_the_sampler_picks(kind: str, vocabulary: int) -> None:
    numbers = np.random.default_rng(sum(map(ord, kind)) + vocabulary)
    steps, streams = 3, 4
    sampling = [KINDS[kind]] * streams
    windows = [numbers.integers(0, vocabulary, n).tolist() for n in (0, 1, 30, WINDOW)]
    uniforms = numbers.random((steps, streams))
    sampler, rows = Sampler(sampling, windows, uniforms), rows_of(sampling, windows, uniforms)
    for step in range(steps):
        logits = torch.from_numpy(numbers.normal(0, 2, (streams, vocabulary))).float()
        if step:  # ties
            logits = logits.round()
        expected = sampler(logits, step)
        assert torch.equal(rows.sample(logits), expected)
        assert torch.equal(rows.history[step], expected)
        assert (rows.position == step + 1).all()


def test_streams_with_different_wishes_do_not_mix() -> None:
    numbers = np.random.default_rng(1)
    sampling, uniforms = list(KINDS.values()), numbers.random((2, len(KINDS)))
    windows = [numbers.integers(0, 200, 40).tolist() for _ in sampling]
    sampler, rows = Sampler(sampling, windows, uniforms), rows_of(sampling, windows, uniforms)
    for step in range(2):
        logits = torch.from_numpy(numbers.normal(0, 2, (len(sampling), 200))).float()
        assert torch.equal(rows.sample(logits), sampler(logits, step))


@pytest.mark.parametrize("top_k", [1, 2, 3, 5])
@pytest.mark.parametrize("uniform", [0.0, 0.4, 1 - 2**-53])
def test_of_equal_tokens_the_first_ones_stay(top_k: int, uniform: float) -> None:
    sampling, uniforms = [Sampling(top_k=top_k), GREEDY], np.full((1, 2), uniform)
    logits = torch.tensor([[1.0, 2.0, 2.0, -1.0, 2.0, 1.0]] * 2)
    rows = rows_of(sampling, [[], []], uniforms)
    assert torch.equal(rows.sample(logits), Sampler(sampling, [[], []], uniforms)(logits, 0))
    assert rows.out[1] == 1


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.500001, 0.75, 1.0])
def test_the_token_that_crosses_top_p_stays(top_p: float) -> None:
    logits = torch.zeros(1, 4)
    for uniform in np.linspace(0, 1, 9)[:-1]:
        uniforms, sampling = np.full((1, 1), uniform), [Sampling(top_p=top_p)]
        rows = rows_of(sampling, [[]], uniforms)
        assert torch.equal(rows.sample(logits), Sampler(sampling, [[]], uniforms)(logits, 0))


def test_the_window_is_a_ring_that_forgets_the_oldest() -> None:
    """After WINDOW steps of a burst the ring wraps around."""
    sampling, uniforms = [Sampling(temperature=0.0, repetition_penalty=9.0)], np.zeros((70, 1))
    sampler, rows = Sampler(sampling, [[3]], uniforms), rows_of(sampling, [[3]], uniforms)
    logits = torch.linspace(3, 1, 66).unsqueeze(0)
    picked = [int(rows.sample(logits)) for _ in range(70)]
    assert picked == [int(sampler(logits, step)) for step in range(70)]
    assert sorted(rows.window[0].tolist()) == sorted(picked[-WINDOW:])
    assert rows.history[:, 0].tolist() == picked


def test_one_row_of_uniforms_serves_every_position_and_history_may_be_left_out() -> None:
    rows = rows_of([Sampling()] * 2, [[], []], np.array([[0.1, 0.9]]))
    rows.position.fill_(500)
    named = {field.name: getattr(rows, field.name) for field in fields(rows)}
    named |= {"uniforms": rows.uniforms[0], "history": None}
    sample_rows(torch.zeros(2, 10), **named)
    assert rows.out.tolist() == [1, 9]
    assert rows.position.tolist() == [501, 501]
    assert (rows.window[:, 500 % WINDOW] == rows.out).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN
def test_rubbish_in_slots_out_of_use_harms_nobody() -> None:
    numbers = np.random.default_rng(2)
    sampling = [KINDS["all"]] * 6
    uniforms = numbers.random((1, 6))
    logits = torch.from_numpy(numbers.normal(0, 2, (6, 50))).float()
    expected = Sampler(sampling, [[]] * 6, uniforms)(logits, 0)
    rows = rows_of(sampling, [[]] * 6, uniforms)
    logits[0], logits[1] = torch.nan, -torch.inf
    rows.position[:3] = torch.tensor([-5, 10**12, -(2**63)])
    rows.window[1] = 10**12
    rows.top_k[2] = -4
    for wish in (rows.top_p, rows.min_p, rows.penalty, rows.temperature):
        wish[2] = torch.nan
    rows.uniforms[0, :2] = torch.nan
    picked = rows.sample(logits)
    assert torch.equal(picked[3:], expected[3:])
    assert ((picked >= 0) & (picked < 50)).all()
    assert rows.history[0, :3].tolist() == [-7, -7, -7]


def slots_of(sampling: list[Sampling], limits: list[int], steps: int) -> Slots:
    """Slots of streams with their number as seed, in the middle of their texts; one slot more."""
    count = len(sampling)
    options = rows_of(sampling, [[3, 1]] * count, np.zeros((steps, count)))
    shared = {
        field.name: getattr(options, field.name)
        for field in fields(DecodeInputs)
        if hasattr(options, field.name)
    }
    each = torch.arange(count)
    streams = DecodeInputs(
        tokens=each, source=each, target=each, limits=torch.tensor(limits),
        seed=each - 2**63, choice=each % 2, draw=2**33 + each, **shared,
    )  # fmt: skip
    slots = Slots(count + 1, steps, torch.device("cpu"))
    slots.load(streams)
    slots.begin(streams.source, streams.target, streams.limits)
    return slots


def test_slots_draw_what_the_sampler_draws() -> None:
    sampling, steps = list(KINDS.values()), 3
    count = len(sampling)
    each = np.arange(count, dtype=np.uint64)
    numbers = uniforms(each + 2**63, each % 2, each + 2**33, steps)
    sampler = Sampler(sampling, [[3, 1]] * count, numbers)
    slots = slots_of(sampling, [steps] * count, steps)
    for step in range(steps):
        logits = torch.from_numpy(np.random.default_rng(step).normal(0, 2, (count + 1, 20))).float()
        triton_sample(logits, slots)
        assert torch.equal(slots.tokens[:count], sampler(logits[:count], step))
    assert slots.draw[:count].tolist() == [2**33 + i + steps for i in range(count)]


def test_a_slot_past_its_limit_stays_as_it_is() -> None:
    slots = slots_of([GREEDY] * 3, [2, 1, 0], 2)
    windows = slots.window.clone()
    assert slots.target.tolist() == [0, 1, -1, -1]
    for step in range(2):
        triton_sample(torch.eye(4, 9).roll(step + 4, 1), slots)
        assert slots.target.tolist() == [[0, -1, -1, -1], [-1] * 4][step]
    assert slots.tokens.tolist() == [5, 5, 2, 0]
    assert slots.history.tolist() == [[4, 5, 0, 0], [5, 0, 0, 0]]
    assert slots.position.tolist() == [2, 1, 0, 0]
    assert slots.draw.tolist() == [2**33 + 2, 2**33 + 2, 2**33 + 2, 0]
    assert (slots.window != windows).sum(1).tolist() == [2, 1, 0, 0]


def test_a_vocabulary_that_one_program_cannot_hold_is_refused() -> None:
    rows = rows_of([GREEDY], [[]], np.zeros((1, 1)))
    with pytest.raises(ValueError, match="5000 tokens; this kernel samples from 1 to 4096"):
        rows.sample(torch.zeros(1, 5000))
    assert rows.sample(torch.eye(1, SAMPLE_VOCABULARY)).tolist() == [0]


@pytest.mark.parametrize("name", [field.name for field in fields(Rows)])
def test_tensors_that_do_not_fit_are_refused_by_name(name: str) -> None:
    rows = rows_of([GREEDY] * 2, [[], []], np.zeros((1, 2)))
    good: Tensor = getattr(rows, name)
    for bad in (good[..., :1], good.to(torch.int16)):
        setattr(rows, name, bad)
        with pytest.raises(ValueError, match=name):
            rows.sample(torch.zeros(2, 5))
    setattr(rows, name, good.to("meta"))
    with pytest.raises(ValueError, match=f"{name} must be on cpu"):
        rows.sample(torch.zeros(2, 5))
