"""The reports of the benchmarks are right; `--quick` shows that they run."""

import json
import math
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench.report.machine import machine_class
from bench.report.report import Report
from bench.report.results import write_results
from bench.report.samples import Samples, in_turn, interleave
from bench.report.tables import markdown_table, number, text_table
from bench.report.targets import Check, Target


def test_a_quantile_lies_between_its_neighbours() -> None:
    samples = Samples((4.0, 1.0, 3.0, 2.0, 5.0), "ms")
    assert samples.median == 3.0
    assert samples.quantile(0) == 1.0
    assert samples.quantile(1) == 5.0
    assert samples.quantile(0.1) == pytest.approx(1.4)
    assert samples.quantile(0.9) == pytest.approx(4.6)
    assert Samples((7.0,), "ms").quantile(0.9) == 7.0


def test_no_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="no sample"):
        Samples((), "ms")


def test_a_ratio_is_taken_round_by_round() -> None:
    slow_machine_in_round_two = Samples((2.0, 20.0, 2.0), "ms").over(
        Samples((1.0, 10.0, 1.0), "ms")
    )
    assert slow_machine_in_round_two.values == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        Samples((1.0, 2.0), "ms").over(Samples((1.0,), "ms"))


def test_candidates_take_turns_and_every_second_round_goes_backwards() -> None:
    assert in_turn("abc", 0) == "abc"
    assert in_turn("abc", 1) == "cba"
    samples = interleave({"a": lambda: None, "b": lambda: None}, 3, "ns", 1e9)
    assert {name: len(samples.values) for name, samples in samples.items()} == {"a": 3, "b": 3}
    assert samples["a"].unit == "ns"


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(minimum=3), 3.0, True),
        (Target(minimum=3), 2.999, False),
        (Target(maximum=0.2), 0.21, False),
        (Target(minimum=0.9, maximum=1.1), 1.0, True),
        (Target(minimum=0.9, maximum=1.1), 1.2, False),
        (Target(minimum=0.9), math.nan, False),
        (Target(maximum=0.9), math.nan, False),
        (Target(), 5.0, None),
    ],
)
def test_a_target_is_met_or_not_or_was_not_set(
    target: Target, value: float, met: bool | None
) -> None:
    assert Check("speed", value, "x", target).summary()["met"] is met


def test_numbers_have_three_digits_that_count() -> None:
    assert [number(v) for v in (12345.6, 123.4, 12.34, 1.234, 0.1234)] == [
        "12,346", "123", "12.3", "1.23", "0.123",
    ]  # fmt: skip


def test_tables_line_up() -> None:
    lines = text_table(("case", "median"), [("a", "1.00"), ("longer", "12.0")]).splitlines()
    assert lines == ["case    median", "--------------", "a         1.00", "longer    12.0"]
    assert markdown_table(("case", "median"), [("a", "1.00")]).splitlines() == [
        "| case | median |", "| --- | ---: |", "| a | 1.00 |",
    ]  # fmt: skip


def _report(quick: bool) -> Report:
    report = Report("stack", ("no-such-package",), quick)
    report.add_case("one step", {"ours": Samples((1.0, 2.0, 3.0), "ms")})
    report.check("theirs / ours", 4.0, "x", Target(minimum=3))
    return report


def test_a_report_ends_in_one_json_line_and_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _report(quick=False).finish(tmp_path)
    output = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert output["machine"]["no-such-package"] == "not installed"
    assert output["cases"]["one step"]["ours"]["median"] == 2.0
    assert output["checks"] == [
        {"what": "theirs / ours", "value": 4.0, "unit": "x", "target": "≥ 3", "met": True}
    ]
    path = tmp_path / f"stack-{machine_class(output['machine'])}.json"
    assert json.loads(path.read_text()) == output
    assert "| theirs / ours | 4.00 x | ≥ 3 | yes |" in (tmp_path / "README.md").read_text()


def test_a_quick_report_is_not_kept(tmp_path: Path) -> None:
    _report(quick=True).finish(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_people_wrote_around_the_tables_stays(tmp_path: Path) -> None:
    machine = {"processor": "A (R) CPU", "cores": 2, "kernel": "c-avx2"}
    findings = {"bench": "stack", "machine": machine, "checks": [], "cases": {}}
    assert write_results(findings, tmp_path).name == "stack-a-r-cpu-2-cores-avx2.json"
    page = tmp_path / "README.md"
    page.write_text(page.read_text() + "\nWhy one target is missed.\n")
    write_results(findings | {"bench": "serve"}, tmp_path)
    text = page.read_text()
    assert text.count("Why one target is missed.") == 1
    assert text.count("## stack · A (R) CPU, 2 cores") == 1
    assert text.count("## serve · A (R) CPU, 2 cores") == 1


@pytest.mark.parametrize(
    ("module", "option"),
    [
        ("bench.cpu.__main__", "--quick"),
        ("bench.onnx.__main__", "--quick"),
        ("bench.papers.__main__", "--quick"),
        ("bench.serve.__main__", "--quick"),
        ("bench.serve.soak.__main__", "--minutes"),
        ("bench.serve.compare", "--quick"),
        ("bench.serve.page", "--quick"),
    ],
)
def test_help_teaches_without_the_peers_installed(
    module: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--help"])
    with pytest.raises(SystemExit, match="0"):
        import_module(module).main()
    output = capsys.readouterr().out
    assert option in output
    assert f"python -m {module.removesuffix('.__main__')}" in output
