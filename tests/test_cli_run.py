"""The command run: its options, files and exit codes."""

import io
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sruserve.batch.errors import OutputError
from sruserve.batch.files import check_output
from sruserve.batch.output import Output
from sruserve.cli import app
from sruserve.server.settings import Settings
from tests.preloaded import command

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/batch.md").read_text()


def run(*arguments: str | Path, input: bytes = b"") -> tuple[int, str, str]:  # noqa: A002
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], input=input)
    return result.exit_code, result.stdout, result.stderr


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_of_texts_is_labelled_line_by_line(tmp_path: Path) -> None:
    file, output = tmp_path / "questions.txt", tmp_path / "labels"
    file.write_text("How far is it from Denver to Aspen?\nWho wrote Hamlet?\n")
    code, stdout, _ = run("question-type", file, "-o", output)
    assert (code, stdout) == (0, f"wrote {output}: up to line 2\n")
    labels = [(each["line"], each["label"]) for each in answers(output)]
    assert labels == [(1, "number"), (2, "human")]
    assert sorted(tmp_path.iterdir()) == [output, tmp_path / "labels.progress", file]


def test_standard_input_and_output_are_files(tmp_path: Path) -> None:
    code, stdout, errors = run(
        "shakespeare", "-", "--task", "score", input=b"To be, or not to be\n~\n"
    )
    assert code == 1
    assert json.loads(stdout)["tokens"] == 18
    assert json.loads(errors)["line"] == 2


def test_options_are_fields_of_every_line_of_our_own(tmp_path: Path) -> None:
    file, output = tmp_path / "prompts.jsonl", tmp_path / "out"
    file.write_text('"ROMEO:"\n{"prompt": "ROMEO:", "max_tokens": 3}\n')
    options = ["--max-tokens", "5", "--seed", "1", "--temperature", "0"]
    options += ["--field", "return_token_ids=true", "--field", 'stop=["zz"]']
    assert run("shakespeare", file, "-o", output, *options)[0] == 0
    first, second = answers(output)
    assert len(first["token_ids"]) == 5
    assert len(second["token_ids"]) == 3
    assert first["text"].startswith(second["text"])


def test_wrong_lines_make_the_exit_code_1(tmp_path: Path) -> None:
    file, output = tmp_path / "lines.jsonl", tmp_path / "out"
    file.write_text('"Who?"\n{\n')
    code, _, errors = run("question-type", file, "-o", output)
    assert (code, errors) == (1, f"1 wrong: see {output}.errors\n")
    assert answers(tmp_path / "out.errors")[0]["line"] == 2
    assert run("question-type", file, "-o", output)[0] == 1  # nothing is left, and one is wrong


def test_a_line_may_ask_for_as_many_tokens_as_a_server_s_request(tmp_path: Path) -> None:
    file, output = tmp_path / "prompts.jsonl", tmp_path / "out"
    file.write_text('{"prompt": "a", "max_tokens": 1000000000}\n{"prompt": "a", "max_tokens": 2}\n')
    assert run("shakespeare", file, "-o", output)[0] == 1
    assert [each["line"] for each in answers(output)] == [2]
    (error,) = answers(tmp_path / "out.errors")
    limit = Settings.model_fields["max_new_tokens"].default
    assert f"over the limit of {limit} for a request" in error["reason"]
    assert "SRUSERVE_MAX_NEW_TOKENS" in error["reason"]


def test_a_restart_beside_a_run_that_still_writes_changes_no_file(tmp_path: Path) -> None:
    file, output = tmp_path / "lines", tmp_path / "out"
    file.write_bytes(b"who\n\n")
    assert run("question-type", file, "-o", output)[0] == 1
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {file, *(tmp_path / f"out{end}" for end in ("", ".errors", ".progress"))}
    other = Output(output)
    code, _, errors = run("question-type", file, "-o", output, "--restart")
    assert (code, "another run writes" in errors) == (1, True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    other.close()
    file.write_bytes(b"what\n")
    assert run("question-type", file, "-o", output, "--restart")[0] == 0
    assert set(tmp_path.iterdir()) == {file, output, tmp_path / "out.progress"}
    assert len(answers(output)) == 1


def test_another_option_is_refused_until_a_restart(tmp_path: Path) -> None:
    file, output = tmp_path / "lines", tmp_path / "out"
    file.write_text("Who?\n")
    assert run("question-type", file, "-o", output)[0] == 0
    code, _, errors = run("question-type", file, "-o", output, "--field", "raw_scores=true")
    assert code == 1
    assert "was begun with options {}, and now it is" in " ".join(errors.split())
    again = run("question-type", file, "-o", output, "--field", "raw_scores=true", "--restart")
    assert again[0] == 0
    (answer,) = answers(output)
    assert answer["score"] > 1  # no probability


@pytest.mark.parametrize(
    "suffix", ["", ".errors", ".progress", ".progress.new"], ids=lambda s: s or "output"
)
def test_the_input_is_never_its_own_output(tmp_path: Path, suffix: str) -> None:
    file, output = tmp_path / f"lines{suffix}", tmp_path / "lines"
    file.write_text("Who?")
    code, _, errors = run("question-type", file, "-o", output, "--restart", "--format", "lines")
    reason = "is the input, which the run would change: name another output"
    assert (code, errors) == (1, f"error: {file} {reason}\n")
    assert file.read_text() == "Who?"


def test_a_file_on_standard_input_is_not_the_output_either(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("Who?")
    with file.open("rb") as source, pytest.raises(OutputError, match="is the input"):
        check_output(file, source)
    check_output(file, io.BytesIO(b"Who?"))


def test_a_pipe_is_not_removed_for_an_output(tmp_path: Path) -> None:
    file, pipe = tmp_path / "lines", tmp_path / "pipe"
    file.write_text("Who?\n")
    os.mkfifo(pipe)  # a device, such as /dev/null, can be removed like a pipe
    code, _, errors = run("question-type", file, "-o", pipe, "--restart")
    reason = "not a regular file, so it is not replaced: name another file"
    assert (code, errors) == (1, f"error: {pipe}: {reason}\n")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nobody", "lines"], 1, "no bundled model"),
        (["question-type", "absent"], 1, "absent: No such file or directory"),
        (["question-type", "lines", "--field", "x"], 2, "is not NAME=VALUE"),
        (["question-type", "lines", "-o", "absent/out"], 1, "No such file or directory"),
        (["question-type", "table.csv"], 1, "the CSV has no column text or input or prompt"),
        (["question-type", "lines", "--device", "tpu"], 1, "SRUSERVE_DEVICE"),
    ],
    ids=str,
)
def test_a_mistake_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text("Who?\n")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    status, _, errors = run(*arguments)
    assert status == code
    assert reason in " ".join(errors.replace("│", " ").split())
    assert "Traceback" not in errors


def test_the_commands_of_the_document_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 3
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    programs = tmp_path / "bin"
    programs.mkdir()
    preloader = command(programs / "sruserve", "-m", "sruserve")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "".join(blocks)],
        cwd=tmp_path,
        env=environment,
        pass_fds=[preloader],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(answers(tmp_path / "labels.jsonl")) == 500
    assert [each["custom_id"] for each in answers(tmp_path / "batch-out.jsonl")] == ["a", "b"]
