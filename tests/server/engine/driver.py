"""Run jobs on an engine as the HTTP edge does, and count what it tells of itself."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.folder import Model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Classified, Generated, Result, Scored
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.engine.state_cache.copy_stream import CopyStream


def same_state(left: Snapshot | None, right: Snapshot | None) -> bool:
    assert left is not None
    assert right is not None
    rows = bool(
        np.array_equal(row_of(left), row_of(right))
        and np.array_equal(left.probabilities, right.probabilities)
    )
    return rows and all(
        getattr(left, name) == getattr(right, name)
        for name in (
            *("steps", "pending", "seed", "choice", "window", "word", "utf8", "held_back"),
            *("constraint", "consumed"),
        )
    )


def row_of(snapshot: Snapshot) -> NDArray[np.float32]:
    """A snapshot's row, which has to be a copy."""
    assert isinstance(snapshot.row, np.ndarray)
    return snapshot.row


class Counts:
    """Metrics that a test can read."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.sequences: list[int] = []
        self.tokens: list[int] = []
        self.waiting = self.running = 0
        self.tiers: dict[str, tuple[int, int]] = {}

    def step(self, sequences: int, tokens: int, seconds: float) -> None:
        assert sequences
        assert seconds >= 0
        self.calls["step"] += 1
        self.sequences.append(sequences)
        self.tokens.append(tokens)

    def queued(self, waits: Sequence[float]) -> None:
        self.calls["queued"] += len(waits)

    def generated(self, tokens: int, characters: int) -> None:
        self.calls["generated"] += tokens

    def consumed(self, tokens: int) -> None:
        self.calls["consumed"] += tokens

    def replayed(self) -> None:
        self.calls["replayed"] += 1

    def occupancy(self, waiting: int, running: int) -> None:
        self.waiting, self.running = waiting, running

    def states(self, tier: str, streams: int, state_bytes: int) -> None:
        self.tiers[tier] = (streams, state_bytes)

    def ended(self) -> None:
        self.calls["ended"] += 1


class Driver:
    """A started engine; use it as a context manager."""

    def __init__(
        self,
        model: Model,
        limits: EngineConfig | None = None,
        copy_stream: CopyStream | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.counts = model, Counts()
        self.engine = Engine(model, limits or EngineConfig(), self.counts, copy_stream, clock)

    def __enter__(self) -> "Driver":
        self.engine.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.stop(5)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for what the engine's thread will bring about; it has to, soon."""
        for _ in range(12_000):
            if true():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it did not happen")

    def ids(self, text: str) -> Any:
        assert self.model.codec is not None
        return self.model.codec.encode(text)[0]

    def zero_row(self) -> Any:
        return self.model.network.layout.allocate(1)[0].numpy()

    def job(self, kind: JobKind, items: Sequence[SequenceInput], **fields: Any) -> "Submission":
        return Submission(self.engine, kind, items, **fields)

    async def generate(
        self,
        prompt: str,
        tokens: int,
        seed: int = 7,
        start: Snapshot | None = None,
        choice: int = 0,
        state_output: StateOutput = StateOutput.COPY,
        **sampling: Any,
    ) -> Generated:
        """One completion, delivered as a whole, with its state."""
        item = SequenceInput(self.ids(prompt), start, seed=seed, choice=choice)
        options = Sampling(max_tokens=tokens, **sampling)
        submission = self.job(JobKind.GENERATE, [item], sampling=options, state_output=state_output)
        (result,) = (await submission.results())[0]
        assert isinstance(result, Generated)
        return result

    async def score(
        self, text: str, start: Snapshot | None = None, state_output: StateOutput = StateOutput.COPY
    ) -> Scored:
        submission = self.job(
            JobKind.SCORE, [SequenceInput(self.ids(text), start)], state_output=state_output
        )
        (result,) = (await submission.results())[0]
        assert isinstance(result, Scored)
        return result

    async def classify(self, ids: Sequence[int], start: Snapshot | None = None) -> Classified:
        item = SequenceInput(np.array(ids, np.int64), start)
        (result,) = (
            await self.job(JobKind.CLASSIFY, [item], state_output=StateOutput.COPY).results()
        )[0]
        assert isinstance(result, Classified)
        return result


class Submission:
    """A submitted job, and its results so far."""

    def __init__(
        self, engine: Engine, kind: JobKind, items: Sequence[SequenceInput], **fields: Any
    ) -> None:
        loop = asyncio.get_running_loop()
        self.by_item: dict[int, list[Result]] = defaultdict(list)
        self.job = Job(
            kind,
            items,
            loop,
            lambda index, result: self.by_item[index].append(result),
            loop.create_future(),
            **fields,
        )
        engine.submit(self.job)

    async def results(self) -> dict[int, list[Result]]:
        await asyncio.wait_for(self.job.done, 60)
        return self.by_item
