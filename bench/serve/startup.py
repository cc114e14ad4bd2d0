"""Costs around the model: sealing and opening a state, and starting a server."""

import numpy as np

from bench.report.report import Report
from bench.report.samples import Samples, interleave
from bench.report.targets import Target
from bench.serve.models import CLASSIFIER, LANGUAGE_MODEL
from bench.serve.processes import sruserve
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.key_ring import KeyRing
from sruserve.server.state.token import Binding, StateSealer

_STATE_BYTES = 64 << 10


def state_tokens(report: Report, rounds: int) -> None:
    """Measure sealing a state of 64 KiB for a client, and opening it again."""
    row = np.random.default_rng(1).standard_normal(_STATE_BYTES // 4).astype(np.float32)
    snapshot = Snapshot(row, steps=1000, window=tuple(range(64)))
    binding = Binding(bytes(16), "float32", len(row))
    sealer = StateSealer(KeyRing.parse(KeyRing.random_key()), 3600, 1 << 20)
    token = sealer.seal(snapshot, binding)
    samples = interleave(
        {
            "seal": lambda: sealer.seal(snapshot, binding),
            "open": lambda: sealer.open(token, binding),
            "seal and open": lambda: sealer.open(sealer.seal(snapshot, binding), binding),
        },
        rounds,
    )
    report.add_case("state of 64 KiB", samples)
    report.check(
        "state of 64 KiB: seal and open", samples["seal and open"].median, "ms", Target(maximum=0.3)
    )


def process_start(report: Report, starts: int) -> None:
    """Measure `sruserve serve` from process start to ready, with its files in the disk cache."""
    seconds = []
    for turn in range(starts + 1):  # the first start fills the disk cache
        report.progress(f"start {turn} of {starts}")
        with sruserve("sruserve", [CLASSIFIER, LANGUAGE_MODEL]) as server:
            seconds.append(server.start_seconds)
    samples = Samples(tuple(seconds[1:]), "s")
    report.add_case("process start", {"start to ready, bundled models": samples})
    report.check("process start to ready, bundled models", samples.median, "s", Target(maximum=5))
