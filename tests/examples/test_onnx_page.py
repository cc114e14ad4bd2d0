"""The page of examples/onnx/web answers as the server does, in a real browser."""

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.browser import Page, opened
from tests.examples.conftest import (
    DEMO,
    ROOT,
    ExportState,
    classified,
    completed,
    held_state,
    interrupted,
)
from tests.npm import installed

WEB = ROOT / "examples/onnx/web"
FILES = sorted(file for file in WEB.iterdir() if file.suffix in (".html", ".js", ".json"))

# Fills a form's fields, sends it, and waits until it has ended.
SUBMIT = """
(async () => {
  const [name, values, state] = %s;
  const form = document.querySelector(name);
  for (const [field, value] of Object.entries(values)) {
    const input = form.elements[field];
    input[typeof value === "boolean" ? "checked" : "value"] = value;
  }
  const files = new DataTransfer();
  if (state) files.items.add(new File([state], "state.json"));
  form.elements.state.files = files.files;
  form.requestSubmit();
  while (form.ariaBusy === "true") await new Promise((next) => setTimeout(next, 10));
  const text = (element) => form.querySelector(element).textContent;
  return [text("output"), text("[role=alert]")];
})()
"""


class Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A file host with the page, onnxruntime-web as `npm ci` installs it, and both models."""
    folder = tmp_path_factory.mktemp("site")
    for file in FILES:
        shutil.copy(file, folder)
    shutil.copytree(installed(WEB, "ort", "onnxruntime-web"), folder / "ort")
    (folder / "models").symlink_to(exported)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def page(site: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(site, tmp_path_factory.mktemp("profile")) as page:
        yield page
        assert page.problems == []


def submit(page: Page, form: str, state: Path | None = None, **fields: Any) -> str:
    """What a form shows at its end."""
    saved = None if state is None else state.read_text()
    output, alert = page.evaluate(SUBMIT % json.dumps([form, fields, saved]))
    assert alert == ""
    return str(output)


@pytest.mark.parametrize(
    ("seed", "temperature"),
    [(7, 1.0), (2**63 + 11, 0.7), (1, 0.0)],
    ids=["seed", "large", "greedy"],
)
def test_a_seed_gives_the_text_of_the_server(
    client: httpx.Client, page: Page, seed: int, temperature: float
) -> None:
    options = {"max_tokens": 200, "seed": seed, "temperature": temperature}
    fields: dict[str, Any] = {
        "maxTokens": "200",
        "seed": str(seed),
        "temperature": str(temperature),
    }
    expected = completed(client, "ROMEO:", **options)["text"]
    assert submit(page, "#generate", prompt="ROMEO:", **fields) == expected


def test_a_state_of_a_reply_continues_with_the_text_of_the_server(
    client: httpx.Client, page: Page, export_state: ExportState
) -> None:
    token = interrupted(client, seed=2**53 + 1)
    expected = completed(client, "", max_tokens=150, state=token)["text"]
    assert len(expected) == 152
    state = export_state("shakespeare", token)
    fields: dict[str, Any] = {"prompt": "", "maxTokens": "150", "seed": "", "temperature": "1"}
    assert submit(page, "#generate", state, **fields) == expected


def test_chunks_get_the_labels_and_scores_of_the_server(client: httpx.Client, page: Page) -> None:
    state, shown = None, ""
    page.evaluate("document.querySelector('#classify').reset()")
    for chunk, more in ("How far is it from Den", True), ("ver to Aspen?", False):
        shown = submit(page, "#classify", chunk=chunk, more=more)
        result = classified(client, chunk, state=state, more=more, return_state=more)
        state = result["state"]
        label, score, *_ = shown.splitlines()[-1].split()
        assert label == result["label"]
        assert float(score) == pytest.approx(result["score"], abs=1e-4)
    assert [line.partition(" after ")[2] for line in shown.splitlines()] == [
        "'How far is it from '",
        "'Denver to Aspen? '",
    ]


def test_a_state_continues_in_the_middle_of_a_word(
    client: httpx.Client, page: Page, export_state: ExportState
) -> None:
    _, token = held_state(client, "question-type", input="Who wrote Ham", more=True)
    state = export_state("question-type", token)
    page.evaluate("document.querySelector('#classify').reset()")
    shown = submit(page, "#classify", state, chunk="let?", more=False)
    whole = classified(client, "Who wrote Hamlet?")
    label, score, after, word = shown.split(maxsplit=3)
    assert (label, after, word) == (whole["label"], "after", "'Hamlet? '\n")
    assert float(score) == pytest.approx(whole["score"], abs=1e-4)


def test_a_state_of_another_model_is_refused(
    client: httpx.Client, page: Page, export_state: ExportState
) -> None:
    _, token = held_state(client, "question-type", input="Who ", more=True)
    saved = export_state("question-type", token).read_text()
    output, alert = page.evaluate(SUBMIT % json.dumps(["#generate", {"prompt": "A"}, saved]))
    assert (output, alert) == ("", "the state is another model's")


def test_words_have_the_ids_that_the_tokenizers_library_gives_them(page: Page) -> None:
    file = (DEMO / "question-type/tokenizer.json").read_text()
    tokenizer = Tokenizer.from_str(file)
    texts = [
        "How far is it from Denver to Aspen?",
        "What's \u201cthe\u201d  1st ``word'' of\tÉmile's n\u00b0 1984\u00a0book ?",
        "ΟΔΟΣ ﬁne ½ naïve e\u0301 3.14% $5,000 \u4f60\u597d \U0001f600 _x-y_",
        "",
    ]
    program = f"""
    import("./words.js").then(({{ Words }}) => {{
      const words = new Words({file});
      return {json.dumps(texts)}.map((text) => words.encode(text));
    }})
    """
    assert page.evaluate(program) == [tokenizer.encode(text).ids for text in texts]
    assert any(id_ != 0 for id_ in tokenizer.encode(texts[1]).ids)
