"""Steps that a test holds in the middle, however fast the machine is."""

import threading
from typing import Any

import pytest

from sruserve.server.app import Application
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.model_runner import ModelRunner


class Steps:
    """The steps of all engines: those that begin after `hold` wait until `go_on`.

    waiting: how many do.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self._gated_runners: list[ModelRunner] | None = None
        self._may_go = threading.Event()
        self._may_go.set()
        step = ModelRunner.step

        def gated_step(runner: ModelRunner, *args: Any) -> Any:
            if self._gated_runners is None or runner in self._gated_runners:
                self.waiting += 1
                assert self._may_go.wait(120)
                self.waiting -= 1
            return step(runner, *args)

        monkeypatch.setattr(ModelRunner, "step", gated_step)
        # on the event loop, a step that waits would hold all requests
        monkeypatch.setattr(Engine, "_answered_here", lambda engine, job: False)

    def hold(self, of: Application | Engine | None = None) -> None:
        """Hold the steps of one engine, or of those that a server has now; None: of all."""
        engines = [of] if isinstance(of, Engine) else None
        if isinstance(of, Application):
            catalogue = of.lifecycle.catalogue
            engines = [catalogue.with_states(name).engine for name in catalogue]
        self._gated_runners = None if engines is None else [engine._runner for engine in engines]
        self._may_go.clear()

    def go_on(self) -> None:
        self._may_go.set()
