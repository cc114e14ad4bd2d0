"""`sruserve check`: its output, exit codes, mistakes and interruption."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sruserve.cli import app
from tests.check.fakes import CompletionServer, StreamServer, StuckServer, TensorServer, running

SHORT = "How far"
LONG = "a longer text, which is cut where a letter ends"


def test_a_table_says_what_failed_and_why_without_colours_in_a_file() -> None:
    with running(TensorServer("pads")) as server:
        done = CliRunner().invoke(app, ["check", server.url])
    assert done.exit_code == 1
    rows = [line.split("  ")[0].strip() for line in done.stdout.splitlines()]
    assert [row for row in rows if row in ("split", "company", "seed", "retry", "state")]
    assert "company   fails" in done.stdout
    assert "smallest example: input 0 (1 step)" in done.stdout
    assert "\x1b" not in done.output
    assert f"checking {server.url}: at most" in done.stderr
    assert "8 at a time" in done.stderr


def test_json_has_every_finding_and_nothing_else_is_on_the_standard_output() -> None:
    with running(StreamServer("twice")) as server:
        done = CliRunner().invoke(app, ["check", server.url, "--json"])
    report = json.loads(done.stdout)
    assert report["exit_code"] == done.exit_code == 1
    assert (report["protocol"], report["model"], report["tolerance"]) == ("sruserve", "sum", 0)
    assert report["requests"] == len(server.sent)
    by_name = {each["name"]: each for each in report["checks"]}
    assert by_name["retry"]["verdict"] == "fails"
    assert by_name["retry"]["largest_difference"] > 0
    assert by_name["split"]["verdict"] == "passes"
    assert by_name["seed"]["verdict"] == "not applicable"


def test_own_texts_are_sent(tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_text(f"{SHORT}\n\n{LONG}\n")
    with running(CompletionServer()) as server:
        done = CliRunner().invoke(app, ["check", server.url, "--inputs", str(file), "--json"])
    assert done.exit_code == 0
    assert server.prompts >= {SHORT, LONG}
    assert len(server.prompts) == 3  # with that which finds out the fields of a reply


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftp://127.0.0.1"], "http://HOST:PORT"),
        (["127.0.0.1:8000"], "http://HOST:PORT"),
        (["http://"], "http://HOST:PORT"),
        (["http://127.0.0.1:99999"], "invalid"),
        (["http://user:word@127.0.0.1"], "password"),
        (["http://127.0.0.1/?a=b"], "query"),
        (["http://127.0.0.1", "--inputs", "nothing"], "cannot read nothing"),
        (["http://127.0.0.1", "--protocol", "soap"], "soap"),
        (["http://127.0.0.1", "--tolerance", "-1"], "tolerance"),
        (["http://127.0.0.1", "--timeout", "0"], "timeout"),
        (["http://127.0.0.1", "--concurrency", "1000"], "concurrency"),
        ([], "URL"),
    ],
    ids=str,
)
def test_a_mistake_is_exit_code_2_and_named(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["check", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert "word@" not in done.output


@pytest.mark.parametrize("content", [b"one\n", b"\xff\n\xff\n", b"a\n" * (1 << 20)])
def test_a_file_without_fit_texts_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "texts"
    file.write_bytes(content)
    done = CliRunner().invoke(app, ["check", "http://127.0.0.1:1", "--inputs", str(file)])
    assert done.exit_code == 2
    assert str(file) in done.stderr.replace("\n", "")


def test_texts_for_a_model_of_numbers_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_text("one\ntwo\n")
    with running(TensorServer()) as server:
        done = CliRunner().invoke(app, ["check", server.url, "--inputs", str(file)])
    assert done.exit_code == 2
    assert "leave --inputs out" in done.stderr


def test_a_model_that_is_not_there_is_refused_with_those_that_are() -> None:
    with running(TensorServer()) as server:
        done = CliRunner().invoke(app, ["check", server.url, "--model", "median"])
    assert done.exit_code == 2
    assert "may be: mean" in done.stderr


def test_the_path_before_the_protocol_is_kept() -> None:
    with running(CompletionServer()) as server:
        done = CliRunner().invoke(app, ["check", f"{server.url}/v1/", "--protocol", "openai"])
        assert done.exit_code == 0
        CliRunner().invoke(app, ["check", f"{server.url}/prefix/v1", "--protocol", "openai"])
    assert server.sent[0] == "GET /v1/models"
    assert server.sent[-1] == "GET /prefix/v1/models"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_while_its_threads_wait(number: int, code: int) -> None:
    with running(StuckServer()) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "sruserve", "check", server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stuck.wait(60)
            process.send_signal(number)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
            server.end()
    assert process.returncode == code, err
    assert out == ""
    assert err.startswith("checking ")
    assert "Traceback" not in err
