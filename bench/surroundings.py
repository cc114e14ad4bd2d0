"""What surrounds the model: sealing and opening a state, and the start of a server."""

from secrets import token_bytes

import numpy as np

from bench.models import CLASSIFIER, LANGUAGE_MODEL
from bench.processes import sruserve
from bench.report import Report
from bench.samples import Samples, interleave
from bench.targets import Target
from sruserve.server.engine.jobs import Snapshot
from sruserve.server.state_token import KEY_BYTES, Binding, StateSealer

_STATE_BYTES = 64 << 10


def state_tokens(report: Report, rounds: int) -> None:
    """A state of 64 KiB out to a client and back."""
    row = np.random.default_rng(1).standard_normal(_STATE_BYTES // 4).astype(np.float32)
    snapshot = Snapshot(row, steps=1000, window=tuple(range(64)))
    binding = Binding(bytes(16), "float32", len(row))
    sealer = StateSealer([token_bytes(KEY_BYTES)], 3600, 1 << 20)
    token = sealer.seal(snapshot, binding)
    found = interleave(
        {
            "seal": lambda: sealer.seal(snapshot, binding),
            "open": lambda: sealer.open(token, binding),
            "seal and open": lambda: sealer.open(sealer.seal(snapshot, binding), binding),
        },
        rounds,
    )
    report.measured("state of 64 KiB", found)
    report.check(
        "state of 64 KiB: seal and open", found["seal and open"].median, "ms", Target(most=0.3)
    )


def process_start(report: Report, starts: int) -> None:
    """`sruserve serve` from nothing to its first ready answer, with its files in the disk cache."""
    seconds = []
    for turn in range(starts + 1):  # the first fills the disk cache
        report.doing(f"start {turn} of {starts}")
        with sruserve("sruserve", [CLASSIFIER, LANGUAGE_MODEL]) as server:
            seconds.append(server.start_seconds)
    found = Samples(tuple(seconds[1:]), "s")
    report.measured("process start", {"start to ready, bundled models": found})
    report.check("process start to ready, bundled models", found.median, "s", Target(most=5))
