"""The engine on the Triton kernels: guarantees 2 to 4, and the texts of the CPU.

In float32 these run under the interpreter, too.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sruserve.kernels.dispatch import interpreting
from sruserve.model.folder import Model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.graph_decoder import Burst, GraphDecoder
from sruserve.server.engine.results import Generated
from tests.server.engine.driver import Driver, row_of
from tests.support import random_model

# The interpreter computes in numpy, which warns in the engine's thread, too.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LIMITS = EngineConfig(max_batch_tokens=4, burst=4)
LETTERS = [*b" ,Tabehnort"]  # few: the interpreter sorts one by one
DTYPES = ["float32", *(["bfloat16", "float16"] if torch.cuda.is_available() else [])]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.02, "repetition_penalty": 1.4},
]


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture(scope="module", params=DTYPES)
def model(
    request: pytest.FixtureRequest, device: torch.device, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    folder = tmp_path_factory.mktemp("model") / "m"
    return random_model(folder, dtype=request.param, device=device, vocabulary=LETTERS)


@pytest.fixture(scope="module")
def driver(model: Model) -> Iterator[Driver]:
    with Driver(model, LIMITS) as driver:
        yield driver


@pytest.fixture
def bursts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of streams of every burst that ran."""
    return counted(monkeypatch)


def counted(patch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    launch = GraphDecoder.launch

    def count(self: GraphDecoder, limits: Any, rows: list[int], *rest: Any) -> Burst:
        seen.append(len(rows))
        return launch(self, limits, rows, *rest)

    patch.setattr(GraphDecoder, "launch", count)
    return seen


@pytest.fixture(scope="module")
def alone(driver: Driver) -> list[Generated]:
    """What every way of sampling gives while no other stream is there, in bursts."""

    async def each() -> list[Generated]:
        return [await complete(driver, seed, **s) for seed, s in enumerate(SAMPLINGS)]

    with pytest.MonkeyPatch.context() as patch:
        bursts = counted(patch)
        results = asyncio.run(each())
    assert set(bursts) == {1}
    return results


@pytest.fixture(scope="module")
def whole(driver: Driver) -> Generated:
    """A completion that nothing interrupts."""
    return asyncio.run(complete(driver, 3, tokens=8))


async def complete(driver: Driver, seed: int, tokens: int = 6, **options: Any) -> Generated:
    """By default in two bursts, the second of which is shorter than it may be."""
    return await driver.generate("To be", tokens, seed=seed, **options)


@contextmanager
def on_the_cpu(folder: Path) -> Iterator[Driver]:
    """An engine of the CPU's kernels, also where Triton's run on the CPU."""
    with (
        interpreting(False),
        Driver(random_model(folder / "m", vocabulary=LETTERS), LIMITS) as driver,
    ):
        yield driver


# In this dtype alone, because another rounding gives another text.
@pytest.mark.parametrize("model", ["float32"], indirect=True)
@awaited
async def test_completions_are_those_of_the_cpu(
    alone: list[Generated], bursts: list[int], tmp_path: Path
) -> None:
    with on_the_cpu(tmp_path) as on_cpu:
        expected = [await complete(on_cpu, seed, **s) for seed, s in enumerate(SAMPLINGS)]
    assert not bursts
    assert [each.tokens for each in alone] == [each.tokens for each in expected]


@awaited
async def test_company_changes_no_token(
    driver: Driver, alone: list[Generated], bursts: list[int]
) -> None:
    together = await asyncio.gather(
        *(complete(driver, seed, **s) for seed, s in enumerate(SAMPLINGS))
    )
    assert max(bursts) > 1
    assert [each.text for each in together] == [each.text for each in alone]


@awaited
async def test_asking_for_logprobs_changes_no_token(driver: Driver) -> None:
    options = SAMPLINGS[3]
    plain = await complete(driver, 5, **options)
    detailed = await complete(driver, 5, logprobs=3, **options)
    assert detailed.tokens == plain.tokens
    assert len(detailed.logprobs) == len(plain.tokens)
    assert all(len(each.top) == 3 for each in detailed.logprobs)


@awaited
async def test_a_completion_that_continues_is_one_that_never_stopped(
    driver: Driver, whole: Generated
) -> None:
    first = await complete(driver, 3, tokens=3)
    then = await driver.generate("", 5, seed=3, start=first.state)
    assert first.text + then.text == whole.text
    assert whole.state is not None
    assert then.state is not None
    if driver.model.network.device.type == "cuda":
        assert np.array_equal(row_of(then.state), row_of(whole.state))


@awaited
async def test_a_stop_inside_a_burst_leaves_the_state_at_the_stop(
    driver: Driver, whole: Generated
) -> None:
    stop = whole.text[4]
    place = whole.text.index(stop)
    stopped = await complete(driver, 3, tokens=8, stop=(stop,))
    assert stopped.text == whole.text[:place]
    then = await driver.generate("", 8 - place - 1, seed=3, start=stopped.state)
    assert then.text == whole.text[place + 1 :]


@awaited
async def test_scores_are_those_of_the_cpu(driver: Driver, tmp_path: Path) -> None:
    score = await driver.score("To be, or not")
    with on_the_cpu(tmp_path) as on_cpu:
        expected = await on_cpu.score("To be, or not")
    rel = 1e-5 if driver.model.dtype == "float32" else 0.02
    assert score.log_likelihood == pytest.approx(expected.log_likelihood, rel=rel)


class Watched(Constraint):
    """A constraint to which a weak reference is possible."""


@awaited
async def test_an_idle_engine_holds_no_constraint(driver: Driver) -> None:
    """Otherwise its grammar would count as in use."""
    constraint = Watched.regex("[a-z]{3}", ByteVocabulary.of(driver.model.codec))
    gone = weakref.ref(constraint)
    await complete(driver, 3, tokens=2)
    await complete(driver, 3, tokens=2, constraint=constraint)
    del constraint
    await driver.until(lambda: not driver.engine.busy)
    for _ in range(20):
        gc.collect()  # the driver's own cycles
        if gone() is None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("something holds it")
