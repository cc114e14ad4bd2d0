"""Company changes nothing: not among sources, not among hypotheses, not by where rows are."""

import random

import pytest
import torch
from torch import Tensor

from sruserve.kernels import single
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.recurrent import RecurrentTranslator
from sruserve.model.translation.translator import StepResult, Translator
from tests.model.translation.systems import (
    BOS,
    SYSTEMS,
    TARGET,
    config_of,
    forced,
    random_system,
    random_weights,
    sources,
)

EACH_SYSTEM = pytest.mark.parametrize("name", SYSTEMS)
LENGTHS = [5, 1, 17, 40, 2]


def targets(count: int, steps: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, TARGET, (count, steps), generator=generator)
    tokens[:, 0] = BOS
    return tokens


@EACH_SYSTEM
def test_a_source_has_the_same_memory_alone_and_among_others(name: str) -> None:
    system, texts = random_system(name), sources(LENGTHS)
    together = system.encode(texts)
    assert together.longest == max(LENGTHS)
    for number, text in enumerate(texts):
        alone = system.encode([text])
        assert alone.rows[0].shape == (len(text), system.memory_width)
        assert torch.equal(alone.rows[0], together.rows[number])
        assert torch.equal(alone.states[0], together.states[number])
    joined = Memory.join([system.encode(texts[:2]), system.encode(texts[2:])])
    assert all(torch.equal(a, b) for a, b in zip(joined.rows, together.rows, strict=True))
    assert torch.equal(together[3].rows[0], together.rows[3])


def test_many_sources_are_encoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    system, texts = random_system("transformer"), sources([40] * 60 + [3])
    whole = system.encode(texts, max_rows=1 << 20)
    calls: list[int] = []
    encode = system._encode

    def counted(ids: Tensor, offsets: Tensor) -> Memory:
        calls.append(len(ids))
        return encode(ids, offsets)

    monkeypatch.setattr(system, "_encode", counted)
    parts = system.encode(texts)
    assert calls == [1000, 1000, 403]
    assert all(torch.equal(a, b) for a, b in zip(whole.rows, parts.rows, strict=True))
    assert len(system.encode([])) == 0


@EACH_SYSTEM
def test_a_hypothesis_has_the_same_bits_alone_and_among_others(name: str) -> None:
    """All hypotheses start at other times, in slots in disorder of one cache."""
    system, memory = random_system(name), random_system(name).encode(sources(LENGTHS))
    count, steps = 7, 6
    tokens, order = targets(count, steps), random.Random(1)
    source = torch.tensor([order.randrange(len(LENGTHS)) for _ in range(count)])
    slots = order.sample(range(100), count * steps)
    ancestry = torch.tensor(slots, dtype=torch.int32).view(count, steps)
    cache = torch.full((100, system.cache_width), torch.nan)
    states, log_probs = memory.states[source], torch.zeros(count, steps, TARGET)
    shares = torch.zeros(count, steps, memory.longest)
    done = torch.zeros(count, dtype=torch.int64)
    for turn in range(steps + count - 1):
        running = torch.tensor([h for h in range(count) if h <= turn and done[h] < steps])
        result = step(
            system, tokens, done, running, source, memory, states[running], cache, ancestry
        )
        assert result.attention is not None
        states[running] = result.state
        for row, hypothesis in enumerate(running.tolist()):
            at = int(done[hypothesis])
            cache[ancestry[hypothesis, at]] = result.cache[row]
            log_probs[hypothesis, at] = result.log_probs[row]
            shares[hypothesis, at] = result.attention[row]
        done[running] += 1
    for hypothesis in range(count):
        alone = forced(
            system, memory, int(source[hypothesis]), tokens[hypothesis].tolist(), attention=True
        )
        assert torch.equal(alone.log_probs, log_probs[hypothesis])
        assert torch.equal(alone.state[0], states[hypothesis])
        assert alone.attention is not None
        assert torch.equal(alone.attention, shares[hypothesis])
        only = memory[int(source[hypothesis])]
        assert torch.equal(
            forced(system, only, 0, tokens[hypothesis].tolist()).log_probs, alone.log_probs
        )


def step(
    system: Translator,
    tokens: Tensor,
    done: Tensor,
    running: Tensor,
    source: Tensor,
    memory: Memory,
    states: Tensor,
    cache: Tensor,
    ancestry: Tensor,
) -> StepResult:
    """One step of the running hypotheses; what they must not read of `ancestry` is out of range."""
    read = torch.arange(ancestry.shape[1]) < done[running][:, None]
    return system.step(
        tokens[running, done[running]],
        done[running],
        source[running],
        memory,
        states,
        cache,
        torch.where(read, ancestry[running], torch.tensor(1 << 30, dtype=torch.int32)),
        attention=True,
    )


@EACH_SYSTEM
def test_two_hypotheses_share_their_past_until_they_part(name: str) -> None:
    system = random_system(name)
    memory = system.encode(sources([9]))
    past, left, right = [BOS, 5, 9, 7], [11, 4], [20, 3]
    before = forced(system, memory, 0, past)
    first, second = (forced(system, memory, 0, [*past, *rest]) for rest in (left, right))
    cache = torch.cat((before.cache, torch.full((4, system.cache_width), torch.nan)))
    ancestry = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 3, 5]], dtype=torch.int32)
    state = before.state.repeat(2, 1)
    for turn in range(2):
        result = system.step(
            torch.tensor([left[turn], right[turn]]),
            torch.tensor([4 + turn] * 2),
            torch.tensor([0, 0]),
            memory,
            state,
            cache,
            ancestry,
        )
        state = result.state
        cache[4 + 2 * turn : 6 + 2 * turn] = result.cache
        assert torch.equal(result.log_probs[0], first.log_probs[4 + turn])
        assert torch.equal(result.log_probs[1], second.log_probs[4 + turn])
    assert not torch.equal(first.log_probs[5], second.log_probs[5])


@pytest.mark.parametrize("name", ["sru-mlp", "qrnn-general", "lstm-none"])
def test_steps_are_the_whole_target_through_the_decoders_stack(name: str) -> None:
    """Computed in plain torch from the stack's outputs for all steps at once."""
    system = random_system(name)
    assert isinstance(system, RecurrentTranslator)
    weights = random_weights(config_of(SYSTEMS[name]))
    memory, target = system.encode(sources([9])), [BOS, 7, 4, 4, 11]
    states = memory.states.clone()
    rows = weights["target_embedding.weight"][target]
    hidden = system._decoder(rows, single(states, len(target)))
    seen = memory.rows[0]
    if name != "lstm-none":
        values, part = (
            seen[:, -18:],
            {k.removeprefix("attention."): v for k, v in weights.items() if "attention" in k},
        )
        if name == "sru-mlp":
            query = hidden @ part["linear_query.weight"].T + part["linear_query.bias"]
            keys = values @ part["linear_context.weight"].T
            scores = (query[:, None] + keys).tanh() @ part["v.weight"][0]
        else:
            scores = (hidden @ part["linear_in.weight"].T) @ values.T
        context = scores.softmax(1) @ values
        hidden = torch.cat((context, hidden), 1) @ part["linear_out.weight"].T
        hidden = hidden + part["linear_out.bias"] if name == "sru-mlp" else hidden.tanh()
    expected = (hidden @ weights["output.weight"].T + weights["output.bias"]).log_softmax(1)
    ours = forced(system, memory, 0, target)
    torch.testing.assert_close(ours.log_probs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.state, states, rtol=1e-5, atol=1e-5)


@EACH_SYSTEM
def test_the_number_of_threads_changes_no_bits(name: str) -> None:
    system, before = random_system(name), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            memory = system.encode(sources(LENGTHS * 8))
            results.append((memory, forced(system, memory, 3, [BOS, 4, 5])))
    finally:
        torch.set_num_threads(before)
    (one, alone), (many, among) = results
    assert all(torch.equal(a, b) for a, b in zip(one.rows, many.rows, strict=True))
    assert torch.equal(alone.log_probs, among.log_probs)


@EACH_SYSTEM
def test_log_probabilities_are_those_of_a_distribution_and_shares_sum_to_one(name: str) -> None:
    system = random_system(name)
    memory = system.encode(sources(LENGTHS))
    result = forced(system, memory, 2, [BOS, 7, 9], attention=True)
    torch.testing.assert_close(result.log_probs.exp().sum(1), torch.ones(3))
    assert result.attention is not None
    ones = torch.zeros(3) if name == "lstm-none" else torch.ones(3)
    torch.testing.assert_close(result.attention.sum(1), ones)
    assert not result.attention[:, LENGTHS[2] :].any()


@EACH_SYSTEM
def test_a_source_that_cannot_be_read_is_refused(name: str) -> None:
    system = random_system(name)
    with pytest.raises(ValueError, match="no ids; give it at least one"):
        system.encode([torch.zeros(0, dtype=torch.int64)])
    with pytest.raises(ValueError, match="not in the vocabulary of 23 ids"):
        system.encode([torch.tensor([1, 23])])
    if system.max_source is not None:
        with pytest.raises(ValueError, match="has 65 ids; this model reads 64: shorten it"):
            system.encode([torch.zeros(65, dtype=torch.int64)])
