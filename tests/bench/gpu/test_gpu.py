"""The GPU benchmark without a GPU: its references are right, and it needs only torch."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.gpu import __main__ as gpu
from bench.gpu import host_share
from bench.gpu.checks import FORMS, differing
from bench.gpu.clock import sets_beyond_cache
from bench.gpu.context import Bench, Ceilings
from bench.gpu.model import LANGUAGE_MODEL, random_streams
from bench.gpu.reference import Form, allowed_tokens, exact_scan, relative_error
from bench.gpu.state_cache import CachedStreams
from bench.report.machine import ROOT, machine_class
from bench.report.report import Report
from bench.report.targets import Check, Target
from sruserve.kernels import RaggedBatch
from sruserve.kernels.reference.scan import reference_scan
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.sampling.sampler import Sampler
from sruserve.server.engine.sampling.uniforms import uniforms

# Everything but the standard library, this checkout, Triton, torch, and what torch itself needs.
_SINGLE_STREAM = """
import importlib.abc, sys

ALLOWED = {"bench", "sruserve", "torch", "torchgen", "functorch", "triton"} | {
    "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "nvidia", "setuptools",
    "sympy", "typing_extensions"
}

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = sys.stdlib_module_names | ALLOWED
        if top not in known and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"{name} is not on a bare machine", name=name)

sys.meta_path.insert(0, Blocker())
import bench.gpu
from bench.report.machine import describe_machine
import sruserve.kernels.triton.sample, sruserve.kernels.triton.scan, sruserve.kernels.triton.step
assert describe_machine("triton")["kernel"] == "triton"
assert "numpy" not in sys.modules and "pydantic" not in sys.modules
try:
    import pydantic
except ModuleNotFoundError:
    print("alone")
"""


def test_a_bare_checkout_with_torch_and_triton_is_all_it_needs() -> None:
    command = [sys.executable, "-c", _SINGLE_STREAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("alone\n")


def test_help_teaches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--help"])
    with pytest.raises(SystemExit, match="0"):
        gpu.main()
    output = capsys.readouterr().out
    for part in ("python -m bench.gpu", "--quick", "--only-checks", "--results", "another machine"):
        assert part in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(sys, "argv", ["bench.gpu"])
    assert gpu.main() == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    assert "torch sees no GPU" in captured.err


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_float64_scan_is_the_definition(form: Form) -> None:
    torch.manual_seed(0)
    lengths, width, column = [7, 0, 1, 12], 6, 3
    rows = sum(lengths)
    u = torch.randn(rows + 2, form.blocks * width)
    x = torch.randn(rows + 2, width) if form.skip and form.blocks == 3 else None
    weight_c, bias = torch.randn(2, width), torch.randn(2, width)
    states = torch.randn(8, 2 * width)
    source, target = torch.tensor([0, -1, 2, 3]), torch.tensor([4, 5, 2, -1])
    batch = RaggedBatch(torch.tensor([0, *accumulate(lengths)]), states, source, target)
    h, after = exact_scan(form, u, x, weight_c, bias, batch, column)
    expected = reference_scan(
        u, x, weight_c, bias, batch, column, form.cell,
        backward_from=width // 2 if form.bidirectional else None,
    )  # fmt: skip
    torch.testing.assert_close(h[:rows], expected[:rows].double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after, batch.states.double(), rtol=1e-5, atol=1e-6)


def test_an_error_is_relative_and_nan_is_never_small() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([3.0, 4.5]), exact) == pytest.approx(0.1)
    nan = relative_error(torch.tensor([3.0, float("nan")]), exact)
    assert Target(maximum=1e9).met(nan) is False
    assert differing(torch.tensor([1.0, float("nan")]), torch.tensor([2.0, float("nan")])) == 1


@pytest.mark.parametrize("filtered", [False, True])
def test_the_float64_draw_allows_what_the_cpu_picks_and_hardly_anything_else(
    filtered: bool,
) -> None:
    streams = random_streams(torch.arange(60), 1, vocabulary=50, filtered=filtered)
    logits = torch.randn(60, 50, generator=torch.Generator().manual_seed(3)) * 3
    each = zip(
        streams.temperature.tolist(),
        streams.top_p.tolist(),
        streams.top_k.tolist(),
        streams.min_p.tolist(),
        streams.penalty.tolist(),
        strict=True,
    )
    sampling = [
        Sampling(temperature=t, top_p=p, top_k=k, min_p=m, repetition_penalty=r)
        for t, p, k, m, r in each
    ]
    windows = [[token for token in row if token >= 0] for row in streams.window.tolist()]
    keys = streams.seed.numpy(), streams.choice.numpy(), streams.draw.numpy()
    sampler = Sampler(sampling, windows, uniforms(*keys, 1))
    allowed = allowed_tokens(logits, streams, 0)
    assert bool((sampler(logits, 0) == allowed).any(0).all())
    assert int((allowed != allowed[0]).any(0).sum()) <= 1


def test_a_floor_is_the_larger_of_bytes_and_operations() -> None:
    ceilings = Ceilings(bytes_per_s=4e12, flops=8e14)
    assert ceilings.floor_us(4e6) == pytest.approx(1)
    assert ceilings.floor_us(4e6, 8e9) == pytest.approx(10)


def test_the_language_model_is_that_of_the_paper() -> None:
    assert LANGUAGE_MODEL.multiplied == 48_758_784
    assert LANGUAGE_MODEL.state_width * 4 == 98_304


def test_inputs_in_turn_are_more_than_a_cache_holds() -> None:
    assert sets_beyond_cache(10 << 20, torch.device("cuda")) == 26
    assert sets_beyond_cache(1 << 30, torch.device("cuda")) == 2
    assert sets_beyond_cache(10 << 20, torch.device("cpu")) == 1


def test_results_of_a_gpu_are_named_for_it() -> None:
    facts: dict[str, str | int] = {"processor": "X", "cores": 16, "kernel": "triton"}
    assert machine_class(facts | {"gpu": "NVIDIA H200"}) == "nvidia-h200"
    assert machine_class(facts) == "x-16-cores-triton"


@pytest.mark.parametrize("on_host", [0, 12])
def test_every_kept_stream_continues_from_its_own_state(bare: Bench, on_host: int) -> None:
    cached_streams = CachedStreams(bare, 3, on_device=24 - on_host, on_host=on_host, batch=4)
    rows, streams = cached_streams.pool.rows, cached_streams.create(4)
    while len(streams) < 24:
        streams += cached_streams.create(4)
    numbers = torch.arange(24.0)
    for turn in range(5):
        for places in torch.split(torch.randperm(24), 4):

            def step(
                source: Sequence[int],
                target: Sequence[int],
                places: Tensor = places,
                turn: int = turn,
            ) -> None:
                expected = numbers[places] + turn - 1 if turn else torch.zeros(4)
                assert torch.equal(rows[torch.tensor(source), 0], expected)
                rows[torch.tensor(target)] = (numbers[places] + turn).unsqueeze(1)

            advanced = cached_streams.advance([streams[place] for place in places.tolist()], step)
            for place, resident in zip(places.tolist(), advanced, strict=True):
                streams[place] = resident
    assert cached_streams.cache.on_device + cached_streams.cache.on_host == 24
    assert (cached_streams.cache.on_host > 0) == (on_host > 0)


@pytest.fixture
def bare() -> Bench:
    """A run that measures nothing."""
    report = Report("gpu", ("triton",), quick=True)
    return Bench(
        report=report, device=torch.device("cpu"), dtype=torch.float32, rounds=1, quick=True
    )


def _main(
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
    checks: list[Check],
    broken: list[str],
    parts: Mapping[str, gpu.Part] = gpu.PARTS,
) -> int:
    """Run the script with these checks and parts, and with stubs for everything else."""
    monkeypatch.setattr(gpu, "_interpreted", lambda: True)
    monkeypatch.setattr(sys, "argv", ["gpu", "--quick", *arguments])
    monkeypatch.setattr(gpu, "_check", lambda *_: (checks, broken))
    monkeypatch.setattr(gpu, "measure_ceilings", lambda _: Ceilings(1.0, 1.0))
    return gpu.main(parts)


GREEN = Check("right", 0.0, "", Target(maximum=0))


@pytest.mark.parametrize(
    ("checks", "broken"),
    [([GREEN, Check("wrong", float("nan"), "", Target(maximum=0))], []), ([GREEN], ["it broke"])],
)
def test_no_time_is_taken_of_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checks: list[Check],
    broken: list[str],
) -> None:
    parts: dict[str, gpu.Part] = {"scan": lambda *_: pytest.fail("it was timed")}
    assert _main(monkeypatch, checks=checks, broken=broken, parts=parts) == 1
    out = capsys.readouterr().out
    assert "RED: " in out
    assert json.loads(out.splitlines()[-1])["failed"] == broken


def test_a_wrong_result_is_reported_and_timed_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parts: dict[str, gpu.Part] = {"scan": lambda bench, _: bench.check("a figure", 1.0, "us")}
    lines = tmp_path / "lines.jsonl"
    wrong = Check("wrong", 3.0, "", Target(maximum=0))
    options = ("--time-anyway", "--lines", str(lines))
    assert _main(monkeypatch, *options, checks=[wrong], broken=[], parts=parts) == 1
    assert "RED: wrong: 3" in capsys.readouterr().out
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert "a figure" in [each.get("what") for each in written]


def test_only_checks_ends_in_a_json_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, "--only-checks", checks=[GREEN], broken=[]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["checks"]) == 1


def test_a_part_that_breaks_is_reported_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("no such tile")

    def works(bench: Bench, _: Ceilings) -> None:
        bench.check("a figure", 1.0, "us")

    parts: dict[str, gpu.Part] = {"scan": breaks, "tiles": works}
    assert (
        _main(monkeypatch, "--results", str(tmp_path), checks=[GREEN], broken=[], parts=parts) == 1
    )
    out = capsys.readouterr().out
    assert "NOT MEASURED: scan: RuntimeError: no such tile" in out
    output = json.loads(out.splitlines()[-1])
    assert "a figure" in [check["what"] for check in output["checks"]]
    assert not list(tmp_path.iterdir())


def test_no_part_is_begun_once_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: dict[str, gpu.Part] = {"scan": lambda *_: pytest.fail("it was begun")}
    assert _main(monkeypatch, "--budget-s", "0", checks=[GREEN], broken=[], parts=parts) == 1
    assert "scan: skipped" in capsys.readouterr().out


def test_a_kernel_that_breaks_makes_the_checks_red(
    bare: Bench,
) -> None:
    def group(_: Bench) -> Iterator[Check]:
        raise ValueError("bad tile")

    groups: dict[str, gpu.Group] = {"kernels": group, "decode": lambda _: iter([GREEN])}
    checks, failed = gpu._check(bare, ("kernels", "decode"), groups)
    assert checks == [GREEN]
    assert failed == ["group: ValueError: bad tile"]


def test_the_host_share_is_measured_on_a_real_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--results", str(tmp_path)])
    assert host_share.main() == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["cases"]
    for samples in summary["cases"].values():
        assert all(each["median"] > 0 for each in samples.values())
