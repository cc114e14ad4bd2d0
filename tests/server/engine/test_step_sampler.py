"""A step that samples for many sequences takes memory for a block of them, and changes no token."""

import asyncio
from typing import Any

import pytest
from torch import Tensor

from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sampling.sampler import Sampler
from tests.server.engine.driver import Driver

SEQUENCES, BLOCK = 9, 4  # two blocks of 4 sequences, and one of 1
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.9},
    {"repetition_penalty": 3.0},
    {"frequency_penalty": 1.0, "presence_penalty": 0.5, "logprobs": 1},
    {"logit_bias": ((5, 3.0), (7, -2.0))},
]


async def texts(driver: Driver) -> list[Generated]:
    return await asyncio.gather(
        *(
            driver.generate("To be"[: 1 + i % 5], 40, seed=i, **SAMPLINGS[i % len(SAMPLINGS)])
            for i in range(SEQUENCES)
        )
    )


def test_blocks_of_sequences_get_the_tokens_that_all_get_together(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = asyncio.run(texts(lm))
    sizes, sample, logits = list[int](), Sampler.__call__, lm.model.network.logits

    def spy(sampler: Sampler, scores: Tensor, step: int) -> Tensor:
        sizes.append(len(scores))
        return sample(sampler, scores, step)

    def spy_logits(hidden: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return logits(hidden)

    outputs = lm.model.config.outputs or 0
    with Driver(lm.model, EngineConfig(max_block_scores=BLOCK * outputs + 1)) as driver:
        monkeypatch.setattr(Sampler, "__call__", spy)
        monkeypatch.setattr(lm.model.network, "logits", spy_logits)
        blocks = asyncio.run(texts(driver))
    assert max(sizes) == BLOCK
    assert [(text.text, text.logprobs) for text in blocks] == [
        (text.text, text.logprobs) for text in whole
    ]
