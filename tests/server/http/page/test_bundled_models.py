"""The page lets people choose among the bundled models, and shows what each of them finds."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.server.http.page.conftest import DEMO, KEYS, Visit, Visitor
from tests.server.http.page.test_typing import edit
from tests.server.processes import serving

EXAMPLES = (
    "[...document.querySelectorAll('{panel} .examples button:not([hidden])')]"
    ".map((one) => one.dataset.label ?? null)"
)
MARKS = (
    "[...document.querySelectorAll('#tag-output mark')].map((mark) => "
    "[mark.firstChild.data, mark.querySelector('small').textContent])"
)


@pytest.fixture(scope="module")
def bundled(visit: Visit) -> Iterator[tuple[Visitor, httpx.Client]]:
    """A visitor of a server with two classifiers and a tagger."""
    folders = [DEMO / name for name in ("question-type", "sentiment", "entities")]
    settings = {"state_keys": KEYS, "grpc_port": "off"}
    with serving(*folders, **settings) as (client, _), visit(str(client.base_url)) as visitor:
        yield visitor, client


def choose(visitor: Visitor, model: str) -> None:
    visitor.evaluate(
        "(() => { const picker = document.querySelector('#classify-model');"
        f"picker.value = '{model}'; picker.dispatchEvent(new Event('change')); }})()"
    )


def test_another_classifier_brings_its_labels_and_examples_and_reads_the_text(
    bundled: tuple[Visitor, httpx.Client],
) -> None:
    visitor, client = bundled
    text = "A warm, funny and moving film."
    visitor.open()
    examples = EXAMPLES.format(panel="#classify")
    assert visitor.evaluate(examples) == ["number", "human", "abbreviation"]
    edit(visitor, "#classify-text", text)
    visitor.wait("document.querySelector('#classify-summary').textContent")
    choose(visitor, "sentiment")
    assert visitor.evaluate(examples) == ["positive", "negative"]
    final = "model === 'sentiment' && !body.more"
    visitor.wait(f"requests.some(({{ body, reply }}) => reply && body.{final})")
    visitor.wait("document.querySelector('#classify-summary').textContent.startsWith('positive')")
    names = "[...document.querySelectorAll('.bars .name')].map((one) => one.textContent)"
    assert visitor.evaluate(names) == ["negative", "positive"]
    body = {"model": "sentiment", "input": text}
    whole = client.post("/v1/classify", json=body).json()["results"][0]
    assert visitor.requests("/v1/classify")[-1]["reply"]["results"][0]["scores"] == whole["scores"]


def test_spans_stay_marked_while_a_sentence_is_typed(
    bundled: tuple[Visitor, httpx.Client],
) -> None:
    visitor, _ = bundled
    visitor.open("#tag")
    assert visitor.evaluate(EXAMPLES.format(panel="#tag")) == [None, "B-money", "B-email"]
    edit(visitor, "#tag-text", "See you in Lisbon on 12 March")
    marked = [["Lisbon", "place"], ["12 March", "date"]]
    visitor.wait("document.querySelectorAll('#tag-output mark').length === 2")
    assert visitor.evaluate(MARKS) == marked
    visitor.focus("#tag-text")
    visitor.evaluate("document.querySelector('#tag-text').setSelectionRange(99, 99)")
    visitor.evaluate(
        "window.fewest = 2; new MutationObserver(() => { window.fewest = Math.min(window.fewest, "
        "document.querySelectorAll('#tag-output mark').length); })"
        ".observe(document.querySelector('#tag-output'), { childList: true }); 0"
    )
    visitor.type(" at half past nine.")
    ended = [*marked, ["half past nine", "time"]]
    visitor.wait(
        f"JSON.stringify({MARKS}) === {json.dumps(json.dumps(ended, separators=(',', ':')))}"
    )
    assert visitor.evaluate("window.fewest") == 2
