"""The check before serving: it accepts correct kernels, and names the wrong part of others."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels import graphs as graphs_module
from sruserve.kernels.graphs import Eager, GraphedDecode
from sruserve.kernels.self_check import KernelMismatch, check_kernels
from sruserve.kernels.triton import linear as triton_linear
from sruserve.kernels.triton import sample as triton_sample
from sruserve.kernels.triton import scan as triton_scan
from sruserve.kernels.triton import step as triton_step

# The interpreter computes in numpy, which warns of NaN; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


SHORT = (1, 1)  # a burst of one step of one stream: bursts take most of the time


def check(burst: tuple[int, int] = (4, 5)) -> None:
    """Narrow and with few sequences, but with the same comparisons."""
    check_kernels(torch.device("cpu"), torch.float32, width=32, single_steps=1, burst=burst)


def test_right_kernels_pass() -> None:
    check()


@pytest.mark.parametrize(
    ("module", "name", "what", "wrong"),
    [
        (triton_scan, "triton_scan", "outputs of sequences", 1.01),
        (triton_scan, "triton_scan", "outputs of sequences", float("nan")),
        (triton_linear, "triton_linear", "outputs of sequences", 1.01),
        (triton_step, "triton_step", "scores of a step", 1.01),
    ],
    ids=["scan", "nan", "product", "step"],
)
def test_a_kernel_that_computes_something_else_is_found(
    module: Any, name: str, what: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(module, name)

    def broken(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = right(*args, **kwargs)
        return result.mul_(wrong)  # in place: it may be the caller's

    monkeypatch.setattr(module, name, broken)
    with pytest.raises(KernelMismatch, match=f"{what} in float32"):
        check(SHORT)


def test_a_sampler_that_picks_another_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = triton_sample.triton_sample
    monkeypatch.setattr(triton_sample, "triton_sample", lambda s, slots: right(-s, slots))
    with pytest.raises(KernelMismatch, match="picked"):
        check(SHORT)


def test_a_kernel_that_does_not_run_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Tensor:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(triton_scan, "triton_scan", broken)
    with pytest.raises(KernelMismatch, match="do not run in float32: no kernel image"):
        check()


def test_a_graph_that_is_not_what_was_captured_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = GraphedDecode.run

    def skips(self: GraphedDecode, streams: Any, steps: int) -> Tensor:
        """Correct without a graph; with one, it runs the last step twice."""
        tokens = run(self, streams, steps)
        graphs = not isinstance(self._recorder, Eager) or self._recorder is replayed
        return torch.cat((tokens[1:], tokens[-1:])) if graphs else tokens

    replayed = Eager()
    monkeypatch.setattr(graphs_module, "Eager", lambda: replayed)
    monkeypatch.setattr(GraphedDecode, "run", skips)
    with pytest.raises(KernelMismatch, match="captured burst"):
        check()
