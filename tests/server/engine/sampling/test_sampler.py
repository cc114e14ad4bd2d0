"""What each sampling parameter does, and that a row never depends on other rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.sampling.sampler import Sampler
from sruserve.server.engine.sampling.uniforms import uniforms

DRAWS = 4000
LOGITS = torch.tensor([1.0, 0.0, 2.0, -1.0, 1.5, -9.0])


def frequencies(
    sampling: Sampling, window: tuple[int, ...] = (), logits: Tensor = LOGITS
) -> Tensor:
    """How often each token is drawn from `logits`."""
    sampler = Sampler([sampling] * DRAWS, [window] * DRAWS, uniforms(5, 0, 0, DRAWS)[None])
    tokens = sampler(logits.expand(DRAWS, -1).clone(), 0)
    return torch.bincount(tokens, minlength=len(logits)) / DRAWS


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0.03)


def test_tokens_are_drawn_from_the_softmax() -> None:
    close(frequencies(Sampling()), LOGITS.softmax(0))


def test_temperature_divides_the_logits() -> None:
    close(frequencies(Sampling(temperature=0.5)), (LOGITS / 0.5).softmax(0))


def test_temperature_zero_takes_the_most_likely() -> None:
    assert frequencies(Sampling(temperature=0.0))[2] == 1


def test_top_k_keeps_k() -> None:
    likeliest = torch.tensor([0.0, 0, 1, 0, 1, 0])
    expected = LOGITS.softmax(0) * likeliest
    close(frequencies(Sampling(top_k=2)), expected / expected.sum())
    assert (frequencies(Sampling(top_k=2)) > 0).sum() == 2


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    p = float(LOGITS.softmax(0)[2]) + 0.01
    assert (frequencies(Sampling(top_p=p)) > 0).tolist() == [False, False, True, False, True, False]
    assert frequencies(Sampling(top_p=1e-9))[2] == 1
    assert frequencies(Sampling(top_p=1e-300))[2] == 1


def test_min_p_drops_what_is_unlikely_beside_the_best() -> None:
    ratio = float((LOGITS[0] - LOGITS[2]).exp())
    assert (frequencies(Sampling(min_p=ratio * 1.01)) > 0).sum() == 2
    assert (frequencies(Sampling(min_p=ratio * 0.99)) > 0).sum() == 3


def test_repetition_penalty_makes_seen_tokens_less_likely_whatever_their_sign() -> None:
    logits = LOGITS.clone()
    logits[2], logits[3] = logits[2] / 2, logits[3] * 2
    close(frequencies(Sampling(repetition_penalty=2.0), window=(2, 3, 2)), logits.softmax(0))


def test_within_a_burst_the_penalty_sees_the_new_tokens() -> None:
    sampling = Sampling(temperature=0.0, repetition_penalty=3.0)
    sampler = Sampler([sampling], [()], np.zeros((4, 1)))
    drawn = [int(sampler(LOGITS[None].clone(), step)) for step in range(4)]
    assert drawn[:3] == [2, 4, 0]


@pytest.mark.parametrize("coldest", [1e-6, 1e-38, 1e-300])
def test_the_smallest_temperatures_take_the_most_likely(coldest: float) -> None:
    assert frequencies(Sampling(temperature=coldest))[2] == 1


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_what_is_filtered_out_is_never_drawn(uniform: float) -> None:
    sampler = Sampler([Sampling(top_k=1)], [()], np.array([[uniform]]))
    assert int(sampler(LOGITS[None].clone(), 0)) == 2


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([0.8, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
)


@given(sampling=st.lists(SAMPLINGS, min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_a_row_never_depends_on_other_rows(sampling: list[Sampling], seed: int) -> None:
    count = len(sampling)
    logits = torch.randn(count, 70, generator=torch.Generator().manual_seed(seed))
    draws = np.stack([uniforms(seed, i, 0, 3) for i in range(count)], 1)
    windows = [tuple(range(5 * i)) for i in range(count)]
    together = Sampler(sampling, windows, draws)
    alone = [Sampler([sampling[i]], [windows[i]], draws[:, i : i + 1].copy()) for i in range(count)]
    for step in range(3):
        tokens = together(logits, step).tolist()
        assert tokens == [int(alone[i](logits[i : i + 1], step)) for i in range(count)]
