"""The page lets people choose among the bundled models, and shows what each of them finds."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.server.http.page.conftest import DEMO, KEYS, Visit, Visitor
from tests.server.http.page.test_typing import SUMS, edit
from tests.server.processes import serving

EXAMPLES = (
    "[...document.querySelectorAll('{panel}-examples button:not([hidden])')]"
    ".map((one) => one.dataset.label ?? null)"
)
MARKS = (
    "[...document.querySelectorAll('#tag-output mark')].map((mark) => "
    "[mark.firstChild.data, mark.querySelector('small').textContent])"
)


@pytest.fixture(scope="module")
def bundled(visit: Visit) -> Iterator[tuple[Visitor, httpx.Client]]:
    """A visitor of a server with two classifiers, a tagger, a text generator and a translator."""
    names = ("question-type", "sentiment", "entities", "shakespeare", "numbers")
    folders = [DEMO / name for name in names]
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
    tops = "[...document.querySelectorAll('.bars li')].map((one) => one.offsetTop)"
    negative, positive = visitor.evaluate(tops)
    assert positive < negative  # the best is first
    body = {"model": "sentiment", "input": text}
    whole = client.post("/v1/classify", json=body).json()["results"][0]
    assert visitor.requests("/v1/classify")[-1]["reply"]["results"][0]["scores"] == whole["scores"]


def test_the_chosen_model_is_described(bundled: tuple[Visitor, httpx.Client]) -> None:
    visitor, client = bundled
    models = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    assert all(each["description"] for each in models.values())
    visitor.open()
    assert visitor.text("#classify .about") == models["question-type"]["description"]
    choose(visitor, "sentiment")
    assert visitor.text("#classify .about") == models["sentiment"]["description"]
    assert visitor.text("#generate .about") == models["shakespeare"]["description"]


def test_a_description_is_text_and_never_markup(bundled: tuple[Visitor, httpx.Client]) -> None:
    visitor, _ = bundled
    visitor.open()
    shown = visitor.evaluate("""
    import("/page/typing.js").then(({ modelPicker }) => {
      const label = document.createElement("label");
      document.body.append(label);
      const picker = label.appendChild(document.createElement("select"));
      modelPicker(picker, [{ id: "one", description: "<b>bold</b>" }]);
      return [label.nextSibling.textContent, label.nextSibling.children.length];
    })
    """)
    assert shown == ["<b>bold</b>", 0]


def test_a_translator_translates_the_text_that_the_field_has_last(
    bundled: tuple[Visitor, httpx.Client],
) -> None:
    visitor, client = bundled
    visitor.open("#translate")
    output = "document.querySelector('#translate-output').textContent"
    for text in ("iso: 5. M", "iso: 5. M\u00e4rz 2021"):
        edit(visitor, "#translate-text", text)
    body = {"model": "numbers", "input": text}
    whole = client.post("/v1/translate", json=body).json()["results"][0]["text"]
    assert whole == "2021-03-05"
    visitor.wait(f"{output} === '{whole}'")
    edit(visitor, "#translate-text", " ")
    visitor.wait(f"{output} === ''")
    assert visitor.evaluate("document.querySelector('#translate-problem').hidden")


def test_a_translator_is_listed_and_no_choice_of_other_tasks(
    bundled: tuple[Visitor, httpx.Client],
) -> None:
    visitor, _ = bundled
    visitor.open("#models")
    visitor.wait("document.querySelectorAll('#models-rows tr').length === 5")
    tabs = "[...document.querySelectorAll('[role=tab]:not([hidden])')].map((tab) => tab.id)"
    assert visitor.evaluate(tabs) == [
        "tab-classify", "tab-generate", "tab-score", "tab-tag", "tab-translate", "tab-models",
    ]  # fmt: skip
    choices = "[...document.querySelectorAll('{}')].map((one) => one.value)"
    assert visitor.evaluate(choices.format("#translate-model option")) == ["numbers"]
    assert visitor.evaluate(choices.format("option")).count("numbers") == 1
    row = "[...document.querySelector('#models-rows tr:last-child').children]"
    name, *cells = visitor.evaluate(f"{row}.map((cell) => cell.textContent)")
    assert name.startswith("numbers Translates ")
    assert cells[:4] == ["translate", "1", "float32", "grows with its text"]


def test_another_model_begins_the_sums_anew(bundled: tuple[Visitor, httpx.Client]) -> None:
    visitor, _ = bundled
    visitor.open()
    for text, new in (("Who", "Who"), ("Who wrote", " wrote")):
        edit(visitor, "#classify-text", text)
        visitor.wait(f"requests.some(({{ body, reply }}) => reply && body.input === '{new}')")
    choose(visitor, "sentiment")
    visitor.wait(f"{SUMS}.join() === '9,9'")
    assert "9 characters, from the beginning: " in visitor.text("#classify-sent")


def test_another_model_ends_the_typing_of_an_example(
    bundled: tuple[Visitor, httpx.Client],
) -> None:
    visitor, _ = bundled
    visitor.open()
    visitor.evaluate(
        "(() => { const picker = document.querySelector('#classify-model');"
        "document.querySelector('#classify-examples button').click();"
        "picker.value = 'sentiment'; picker.dispatchEvent(new Event('change')); })()"
    )
    length = visitor.evaluate("document.querySelector('#classify-text').value.length")
    final = "model === 'sentiment' && !body.more"
    visitor.wait(f"requests.some(({{ body, reply }}) => reply && body.{final})")
    read = [each["body"] for each in visitor.requests("/v1/classify")]
    texts = [body["input"] for body in read if body["model"] == "sentiment"]
    assert [len(text) for text in texts] == [length, 0]
    assert visitor.evaluate(SUMS) == [f"{length:,}", f"{length:,}"]


def test_all_tabs_fit_a_narrow_screen(bundled: tuple[Visitor, httpx.Client]) -> None:
    visitor, _ = bundled
    screen = {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    visitor.page.call("Emulation.setDeviceMetricsOverride", **screen)
    try:
        visitor.open()
        tabs = "document.querySelector('.tabs')"
        assert visitor.evaluate(f"{tabs}.querySelectorAll('button:not([hidden])').length") == 6
        assert visitor.evaluate(f"{tabs}.scrollWidth <= {tabs}.clientWidth")
    finally:
        visitor.page.call("Emulation.clearDeviceMetricsOverride")


def test_a_label_stays_with_the_end_of_its_span(bundled: tuple[Visitor, httpx.Client]) -> None:
    visitor, _ = bundled
    visitor.open("#tag")
    edit(visitor, "#tag-text", "We leave at half past nine.")
    first = "document.querySelector('#tag-output mark')?.firstChild.data"
    visitor.wait(f"{first} === 'half past nine'")
    visitor.wait("requests.at(-1).body.input === '' && requests.at(-1).reply")
    apart = """
    (() => {
      const mark = document.querySelector("#tag-output mark");
      const range = document.createRange();
      const { length } = mark.firstChild;
      range.setStart(mark.firstChild, length - 1);
      range.setEnd(mark.firstChild, length);
      const output = document.querySelector("#tag-output");
      const apart = [];
      for (let width = 120; width < 400; width += 4) {
        output.style.width = `${width}px`;
        const { bottom } = range.getBoundingClientRect();
        const label = mark.querySelector("small").getBoundingClientRect();
        if (label.top > bottom) apart.push(width);
      }
      output.style.width = "";
      return apart;
    })()
    """
    assert visitor.evaluate(apart) == []


def test_spans_stay_marked_while_a_sentence_is_typed(
    bundled: tuple[Visitor, httpx.Client],
) -> None:
    visitor, _ = bundled
    visitor.open("#tag")
    assert visitor.evaluate(EXAMPLES.format(panel="#tag")) == ["B-place", "B-money", "B-email"]
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
