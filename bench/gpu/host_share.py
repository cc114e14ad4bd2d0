"""The host's share of a decode step on a GPU: what the engine's thread does beside the kernels.

    python -m bench.gpu.host_share           # a minute, on any machine: no GPU takes part
    python -m bench.gpu.host_share --quick   # only shows that it runs; nothing is stored

The engine is the real one, with a scheduler, slots, detokenizer and event loop. Only the compute is
left out: a replay of a graph does nothing, and leaves the tokens of its first run in the history,
and no end state is looked at for infinite numbers.
The figures are processor time of the engine's thread, so other work on the machine disturbs them
less than a clock would show. Each sample is the mean of one run's bursts.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import inf
from statistics import mean
from time import thread_time
from unittest.mock import patch

import torch

from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.samples import Samples
from bench.report.targets import NO_TARGET, Target
from bench.serve.models import LANGUAGE_MODEL
from sruserve.kernels import graphs
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import CPU
from sruserve.kernels.graphs import Replay
from sruserve.kernels.slots import Slots
from sruserve.model.folder import Model, load_model
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.scheduling import scheduler
from sruserve.server.engine.scheduling.step_time import StepTime
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.state_manager import StateManager

STREAMS = (1, 64, 256, 1024)
BURSTS = (16, 64)
# What is asked of the texts, and whether each burst's text is sent at once.
TEXTS: Mapping[str, tuple[bool, Sampling]] = {
    "whole texts": (False, Sampling()),
    "every burst sent": (True, Sampling()),
    "a stop string": (False, Sampling(stop=("\N{SNOWMAN}!",))),
    "a penalty": (False, Sampling(repetition_penalty=1.1)),
}
_RUNS, _STEPS, _QUICK_STEPS = 3, 512, 128
_TARGET = Target(maximum=25)


class NoCompute(Decoder):
    """A decoder whose steps only leave random tokens in the history."""

    def step(self, slots: Slots) -> None:
        generator = torch.Generator().manual_seed(slots.size)
        slots.history.random_(0, len(self.embedding), generator=generator)

    def pick(self, logits: torch.Tensor, slots: Slots) -> None:
        slots.tokens.copy_(logits.argmax(1))


class NoReplay(graphs.Eager):
    """Records work by running it once; a replay costs nothing, and neither do copies of tokens.

    The device copies by itself. Each piece of the host's memory gets tokens once.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        super().__init__(device)
        self._filled: set[int] = set()

    def record(self, work: Callable[[], None]) -> Replay:
        work()
        return _nothing

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if target.dim() < 2 or target.data_ptr() not in self._filled:
            self._filled.add(target.data_ptr())
            super().copy(target, source)


def _nothing() -> None:
    pass


class ThreadTimes:
    """Metrics that note the engine thread's processor time at every step of all sequences."""

    def __init__(self, streams: int, burst: int) -> None:
        self._streams, self._tokens = streams, streams * burst
        self.seconds: list[float] = []
        self._last: float | None = None

    def step(self, sequences: int, tokens: int, seconds: float) -> None:
        del seconds
        now = thread_time()
        whole = sequences == self._streams and tokens == self._tokens
        if whole and self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now if whole else None

    def queued(self, waits: Sequence[float]) -> None: ...
    def generated(self, tokens: int, characters: int) -> None: ...
    def consumed(self, tokens: int) -> None: ...
    def replayed(self) -> None: ...
    def occupancy(self, waiting: int, running: int) -> None: ...
    def states(self, tier: str, sequences: int, state_bytes: int) -> None: ...
    def ended(self) -> None: ...


@contextmanager
def without_compute(model: Model) -> Iterator[None]:
    """Let engines of `model` decode as on a GPU, without computing anything."""
    network = model.network

    def decoder(states: torch.Tensor) -> Decoder:
        size = model.config.outputs or 0
        return NoCompute(embedding=torch.zeros(size, 1), layers=(), head=None, states=states)  # type: ignore[arg-type]

    with (
        patch.object(network, "decoder", decoder),
        patch.object(graphs, "Eager", NoReplay),
        patch.object(StateManager, "finite", lambda _, sequences: [True] * len(sequences)),
        # A busy machine would otherwise make steps long, and the scheduler divide them.
        patch.object(scheduler, "StepTime", partial(StepTime, target_seconds=inf)),
    ):
        yield


def host_seconds(
    model: Model, streams: int, burst: int, steps: int, sent: bool, sampling: Sampling
) -> float:
    """Return the engine thread's processor seconds of a step, the mean of about `steps` steps."""
    times = ThreadTimes(streams, burst)
    # `flush_ms` 0: every burst of a streamed text is sent.
    config = EngineConfig(burst=burst, flush_ms=0, flush_max_ms=0)
    assert model.codec is not None
    prompt = model.codec.encode("R")[0]

    async def complete(engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        request = Sampling(
            max_tokens=1 + steps + 4 * burst,
            stop=sampling.stop,
            repetition_penalty=sampling.repetition_penalty,
        )
        jobs = [
            Job(
                JobKind.GENERATE,
                [SequenceInput(prompt, seed=seed)],
                loop,
                lambda *_: None,
                loop.create_future(),
                stream=sent,
                sampling=request,
            )
            for seed in range(streams)
        ]
        for job in jobs:
            engine.submit(job)
        await asyncio.gather(*(job.done for job in jobs))

    engine = Engine(model, config, times)
    engine.start()
    gc.collect()
    gc.freeze()  # like the server
    try:
        asyncio.run(complete(engine))
    finally:
        engine.stop(0)
    return mean(times.seconds) / burst


def main() -> int:
    parser = command_line("bench.gpu.host_share", __doc__)
    parser.add_argument("--quick", action="store_true", help="few streams; nothing is stored")
    args = parser.parse_args()
    report = Report("host-share", (), args.quick)
    model = load_model(LANGUAGE_MODEL)
    stream_counts, runs, steps = (
        ((1, 3), 1, _QUICK_STEPS) if args.quick else (STREAMS, _RUNS, _STEPS)
    )
    with without_compute(model):
        for streams, burst in product(stream_counts, BURSTS):
            values: dict[str, list[float]] = {label: [] for label in TEXTS}
            for run, label in product(range(runs), TEXTS):
                report.progress(f"{streams} streams, bursts of {burst}, run {run}, {label}")
                seconds = host_seconds(model, streams, burst, steps, *TEXTS[label])
                values[label].append(seconds * 1e6)
            samples = {label: Samples(tuple(each), "us") for label, each in values.items()}
            case = f"host time of a step, S {streams}, bursts of {burst}"
            report.add_case(case, samples)
            whole = samples["whole texts"].median
            bounded = streams == STREAMS[-1] and burst == BURSTS[-1]
            report.check(f"{case}: whole texts", whole, "us", _TARGET if bounded else NO_TARGET)
            report.check(f"{case}: of a token", whole / streams * 1e3, "ns")
    report.finish(args.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
