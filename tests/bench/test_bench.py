"""What the benches report is right; that they run at all is tried by `--quick`."""

import json
import math
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench.archive import keep
from bench.machine import machine_class
from bench.report import Report
from bench.samples import Samples, in_turn, interleave
from bench.tables import markdown_table, number, text_table
from bench.targets import Check, Target


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
    found = interleave({"a": lambda: None, "b": lambda: None}, 3, "ns", 1e9)
    assert {name: len(samples.values) for name, samples in found.items()} == {"a": 3, "b": 3}
    assert found["a"].unit == "ns"


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(least=3), 3.0, True),
        (Target(least=3), 2.999, False),
        (Target(most=0.2), 0.21, False),
        (Target(least=0.9, most=1.1), 1.0, True),
        (Target(least=0.9, most=1.1), 1.2, False),
        (Target(least=0.9), math.nan, False),
        (Target(most=0.9), math.nan, False),
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
    report.measured("one step", {"ours": Samples((1.0, 2.0, 3.0), "ms")})
    report.check("theirs / ours", 4.0, "x", Target(least=3))
    return report


def test_a_report_ends_in_one_json_line_and_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _report(quick=False).finish(tmp_path)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["machine"]["no-such-package"] == "not installed"
    assert told["cases"]["one step"]["ours"]["median"] == 2.0
    assert told["checks"] == [
        {"what": "theirs / ours", "value": 4.0, "unit": "x", "target": "≥ 3", "met": True}
    ]
    kept = tmp_path / f"stack-{machine_class(told['machine'])}.json"
    assert json.loads(kept.read_text()) == told
    assert "| theirs / ours | 4.00 x | ≥ 3 | yes |" in (tmp_path / "README.md").read_text()


def test_a_quick_report_is_not_kept(tmp_path: Path) -> None:
    _report(quick=True).finish(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_people_wrote_around_the_tables_stays(tmp_path: Path) -> None:
    machine = {"processor": "A (R) CPU", "cores": 2, "kernel": "c-avx2"}
    whole = {"bench": "stack", "machine": machine, "checks": [], "cases": {}}
    assert keep(whole, tmp_path).name == "stack-a-r-cpu-2-cores-avx2.json"
    page = tmp_path / "README.md"
    page.write_text(page.read_text() + "\nWhy one target is missed.\n")
    keep(whole | {"bench": "serve"}, tmp_path)
    text = page.read_text()
    assert text.count("Why one target is missed.") == 1
    assert text.count("## stack · A (R) CPU, 2 cores") == 1
    assert text.count("## serve · A (R) CPU, 2 cores") == 1


@pytest.mark.parametrize(
    ("module", "option"),
    [
        ("bench.stack", "--quick"),
        ("bench.serve.__main__", "--quick"),
        ("bench.serve.soak", "--minutes"),
        ("bench.serve.compare", "--quick"),
    ],
)
def test_help_teaches_without_the_peers_installed(
    module: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--help"])
    with pytest.raises(SystemExit, match="0"):
        import_module(module).main()
    told = capsys.readouterr().out
    assert option in told
    assert f"python -m {module.removesuffix('.__main__')}" in told
