"""Sources that arrive in chunks: any split has the memory and the state of the whole source."""

import random

import pytest
import torch

from tests.model.translation.systems import BOS, SYSTEMS, forced, random_system, sources

ONE_WAY = ["gru-one-way", "lstm-one-way", "sru-one-way", "qrnn-general"]
LENGTHS = [5, 1, 17, 40, 2]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_says_whether_its_sources_may_arrive_in_chunks(name: str) -> None:
    because = random_system(name).whole_because
    if name in ONE_WAY:
        assert because is None
    elif name.startswith("transformer"):
        assert because == "each step of its encoder attends to the whole source"
    else:
        assert because == "its encoder reads the source in both directions"


@pytest.mark.parametrize("name", ONE_WAY)
def test_any_split_of_a_source_has_the_memory_of_the_whole(name: str) -> None:
    system, texts, draw = random_system(name), sources(LENGTHS), random.Random(name)
    whole = system.encode(texts)
    rows = [torch.zeros(0, system.memory_width) for _ in texts]
    states = torch.zeros(len(texts), system.encoder_width)
    begins = [0] * len(texts)
    while going := [i for i, text in enumerate(texts) if begins[i] < len(text)]:
        ends = [min(begins[i] + draw.randint(1, 12), len(texts[i])) for i in going]
        chunks = [texts[i][begins[i] : end] for i, end in zip(going, ends, strict=True)]
        read = system.read(chunks, states[going])
        states[going] = read.states
        for i, end, part in zip(going, ends, read.rows, strict=True):
            rows[i], begins[i] = torch.cat((rows[i], part)), end
    assert all(torch.equal(a, b) for a, b in zip(rows, whole.rows, strict=True))
    assert torch.equal(system.start(states), whole.states)


@pytest.mark.parametrize("name", ONE_WAY)
def test_a_step_reads_only_what_it_may_see_of_a_source(name: str) -> None:
    system, (text,) = random_system(name), sources([9])
    first, whole = system.encode([text[:4]]), system.encode([text])
    begun = first.states
    short = forced(system, first, 0, [BOS])
    one, seen = torch.tensor([BOS]), torch.tensor([4])
    nothing = torch.zeros(1, 0, dtype=torch.int32)
    zero = torch.zeros(1, dtype=torch.int64)
    cache = torch.zeros(0, system.cache_width)
    result = system.step(one, zero, zero, whole, begun, cache, nothing, seen=seen)
    assert torch.equal(result.log_probs, short.log_probs)
    unlimited = system.step(one, zero, zero, whole, begun, cache, nothing)
    assert not torch.equal(unlimited.log_probs, short.log_probs)
