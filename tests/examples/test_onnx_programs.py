"""The programs of examples/onnx answer as the server does, without torch and sruserve."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.examples.conftest import (
    ROOT,
    ExportState,
    classified,
    completed,
    held_state,
    interrupted,
)

EXAMPLES = ROOT / "examples/onnx"
# Runs a program in a Python that finds none of these modules.
ALONE = """
import runpy, sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {without}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
WITHOUT = {
    "generate.py": {"torch", "sruserve", "onnx", "safetensors", "tokenizers"},
    "classify.py": {"torch", "sruserve", "onnx", "safetensors"},
}
QUESTION = ["How far is it from Den", "ver to As", "pen?"]


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A program that has ended, run alone."""
    alone = ALONE.format(without=WITHOUT[program.name])
    command = [sys.executable, "-I", "-c", alone, program, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


def output(program: str, *arguments: object) -> str:
    """What an example writes."""
    done = run(EXAMPLES / program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def generated(exported: Path, *arguments: object) -> str:
    return output("generate.py", exported / "shakespeare/step.onnx", *arguments)


@pytest.mark.parametrize("name", ["torch", "sruserve"])
def test_a_program_that_runs_alone_cannot_import(name: str, tmp_path: Path) -> None:
    program = tmp_path / "generate.py"
    program.write_text(f"import {name}\n")
    assert f"ModuleNotFoundError: {name}" in run(program).stderr


@pytest.mark.parametrize(
    ("seed", "temperature"),
    [(7, 1.0), (2**63 + 11, 0.7), (1, 0.0)],
    ids=["seed", "large", "greedy"],
)
def test_a_seed_gives_the_text_of_the_server(
    client: httpx.Client, exported: Path, seed: int, temperature: float
) -> None:
    options = {"max_tokens": 200, "seed": seed, "temperature": temperature}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    expected = completed(client, "ROMEO:", **options)["text"]
    assert generated(exported, "--prompt=ROMEO:", *arguments) == expected


def test_a_state_of_a_reply_continues_with_the_text_of_the_server(
    client: httpx.Client, exported: Path, export_state: ExportState
) -> None:
    token = interrupted(client, seed=2**53 + 1)
    expected = completed(client, "", max_tokens=150, state=token)["text"]
    assert len(expected) == 152
    state = export_state("shakespeare", token)
    assert generated(exported, "--state", state, "--max-tokens=150") == expected


def test_a_stream_that_the_server_holds_continues_with_a_prompt(
    client: httpx.Client, exported: Path, export_state: ExportState
) -> None:
    stream, token = held_state(client, "shakespeare", prompt="KING:", max_tokens=80, seed=3)
    step = {"step": 2, "prompt": "\nQUEEN:", "max_tokens": 120}
    reply = client.post(f"/v1/streams/{stream}/steps", json=step).json()
    state = export_state("shakespeare", token)
    text = generated(exported, "--state", state, "--prompt=\nQUEEN:", "--max-tokens=120")
    assert text == reply["choices"][0]["text"]


def test_chunks_get_the_labels_and_scores_of_the_server(
    client: httpx.Client, exported: Path
) -> None:
    lines = output("classify.py", exported / "question-type/model.onnx", *QUESTION).splitlines()
    state, results = None, []
    for number, chunk in enumerate([*QUESTION, ""]):
        more = number < len(QUESTION)
        results.append(classified(client, chunk, state=state, more=more, return_state=more))
        state = results[-1]["state"]
    results.pop(2)  # "pen?" ends no word
    assert len(lines) == len(results)
    for line, result in zip(lines, results, strict=True):
        agree(line, result)


def test_a_state_continues_in_the_middle_of_a_word(
    client: httpx.Client, exported: Path, export_state: ExportState
) -> None:
    _, token = held_state(client, "question-type", input="Who wrote Ham", more=True)
    state = export_state("question-type", token)
    assert json.loads(state.read_text())["word"] == "Ham"
    model = exported / "question-type/model.onnx"
    (line,) = output("classify.py", model, "let?", "--state", state).splitlines()
    assert line.endswith(" after 'Hamlet? '")
    agree(line, classified(client, "Who wrote Hamlet?"))


def test_a_state_of_another_model_is_refused(
    client: httpx.Client, exported: Path, export_state: ExportState
) -> None:
    _, token = held_state(client, "question-type", input="Who ", more=True)
    state = export_state("question-type", token)
    done = run(EXAMPLES / "generate.py", exported / "shakespeare/step.onnx", "--state", state)
    assert done.returncode == 1
    assert "the state is another model's" in done.stderr


def agree(line: str, result: dict[str, Any]) -> None:
    """A line of classify.py says what the server does."""
    label, score, *_ = line.split()
    assert label == result["label"]
    assert float(score) == pytest.approx(result["score"], abs=1e-4)
