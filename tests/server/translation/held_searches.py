"""Steps of beam searches that a test holds in the middle, however fast the machine is."""

import threading
from typing import Any

import pytest

from sruserve.server.engine.translation.beam_runner import BeamRunner


class Searches:
    """Steps that begin after `hold` wait until `go_on`. waiting: whether one does.

    widths: the hypotheses of each step, sentence by sentence.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = threading.Event()
        self.widths: list[list[int]] = []
        self._may_go, self._once = threading.Event(), False
        self._may_go.set()
        step = BeamRunner.step

        def gated_step(runner: BeamRunner, live: Any, *more: Any) -> Any:
            if not self._may_go.is_set():
                self.waiting.set()
            assert self._may_go.wait(120)
            self.waiting.clear()
            if self._once:
                self._may_go.clear()
            self.widths.append([sentence.search.hypotheses for sentence in live])
            return step(runner, live, *more)

        monkeypatch.setattr(BeamRunner, "step", gated_step)

    def hold(self) -> None:
        self._may_go.clear()

    def one_step(self) -> None:
        """Let one step go on; the next one waits."""
        self._once = True
        self.waiting.clear()
        self._may_go.set()

    def go_on(self) -> None:
        self._once = False
        self._may_go.set()
