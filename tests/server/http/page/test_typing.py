"""What is typed into the page goes to the server once, with the state of what came before."""

import json
from collections.abc import Iterator
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import TAGS, WORDS, Serve, words_vocabulary
from tests.server.http.page.conftest import Visit, Visitor
from tests.support import save_random_model

QUESTION = "How far is it from Denver to Aspen?"
CLASSIFY, COMPLETE = "/v1/classify", "/v1/completions"
# Characters that were read, and that would have been without states.
SUMS = (
    "(document.querySelector('#classify-sums').textContent"
    ".match(/^So far: ([\\d,]+) .*? would be ([\\d,]+):/) ?? []).slice(1)"
)


def classified(client: httpx.Client, text: str) -> dict[str, Any]:
    reply = client.post(CLASSIFY, json={"model": "question-type", "input": text})
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()["results"][0]
    return result


def read_text(visitor: Visitor, text: str) -> None:
    """Type a text, each character when the last one is answered, and wait for its label."""
    visitor.focus("#classify-text")
    for count, character in enumerate(text, 1):
        visitor.type(character)
        visitor.wait(
            f"requests.filter(({{ body, reply }}) => reply && body.input).length === {count}"
        )
    # a slow machine may take pauses between keystrokes for the end of the text
    visitor.wait(
        f"(({{ reply }}) => requests.some((one) => one.reply && !one.body.more"
        f" && one.body.state === reply.results[0].state))"
        f"(requests.filter(({{ path, body }}) => path === '{CLASSIFY}' && body.input).at(-1))"
    )
    visitor.wait("document.querySelector('#classify-summary').textContent")


def edit(visitor: Visitor, field: str, text: str) -> None:
    """Put another text into a field at once."""
    visitor.evaluate(
        f"(() => {{ const field = document.querySelector('{field}');"
        f"field.value = {json.dumps(text)}; field.dispatchEvent(new Event('input')); }})()"
    )


def in_words(visitor: Visitor, count: int) -> str:
    """A number of bytes as the page shows it."""
    return str(visitor.evaluate(f"import('/page/format.js').then(({{ bytes }}) => bytes({count}))"))


def chunks(visitor: Visitor) -> list[dict[str, Any]]:
    """The requests with new text."""
    return [each for each in visitor.requests(CLASSIFY) if each["body"]["input"]]


def test_the_label_of_a_typed_text_is_that_of_the_whole_text(
    visitor: Visitor, demo: httpx.Client
) -> None:
    visitor.open()
    read_text(visitor, QUESTION)
    whole = classified(demo, QUESTION)
    last = visitor.requests(CLASSIFY)[-1]
    assert last["body"]["input"] == ""
    assert last["reply"]["results"][0]["scores"] == whole["scores"]
    label = json.dumps(whole["label"])
    visitor.wait(f"document.querySelector('.bars .best .name').textContent === {label}")
    visitor.wait(f"document.querySelector('#classify-summary').textContent.startsWith({label})")


def test_a_keystroke_sends_what_is_new_and_the_state_of_the_last_reply(visitor: Visitor) -> None:
    visitor.open()
    read_text(visitor, QUESTION)
    sent = chunks(visitor)
    assert [each["body"]["input"] for each in sent] == list(QUESTION)
    assert sent[0]["body"]["state"] is None
    for before, after in pairwise(sent):
        assert after["body"]["state"] == before["reply"]["results"][0]["state"]
        assert after["body"]["more"]
    assert visitor.evaluate(SUMS) == [str(len(QUESTION)), str(sum(range(len(QUESTION) + 1)))]
    states = [len(each["reply"]["results"][0]["state"]) for each in sent]
    assert visitor.text("#classify-sent") == (
        f"Read: 1 character of {len(QUESTION)}. "
        f"A memory of {in_words(visitor, states[-2])} stood for the others."
    )
    assert visitor.text("#classify-sums").endswith(
        "The memory is larger than a text as short as this; "
        f"it pays from about {in_words(visitor, max(states))} of text on."
    )


def test_a_text_longer_than_its_memory_is_compared_with_it_in_bytes(visitor: Visitor) -> None:
    visitor.open()
    long = f"{QUESTION} " * 100
    edit(visitor, "#classify-text", long)
    visitor.wait("requests.at(-1)?.body.input === '' && requests.at(-1).reply")
    state = len(visitor.requests(CLASSIFY)[0]["reply"]["results"][0]["state"])
    assert visitor.text("#classify-sums").endswith(
        f"A memory of at most {in_words(visitor, state)} travels, and not a text of 3.6 kB."
    )


def test_the_sums_are_the_same_however_quickly_one_types(visitor: Visitor) -> None:
    visitor.open()
    visitor.evaluate(
        "(() => { const field = document.querySelector('#classify-text');"
        "for (const letter of 'Who wrote') { field.value += letter;"
        "field.dispatchEvent(new Event('input')); } })()"
    )
    visitor.wait(f"{SUMS}[0] === '9'")
    assert len(chunks(visitor)) < 9
    assert visitor.evaluate(SUMS) == ["9", str(sum(range(10)))]


def test_an_emptied_field_and_an_example_begin_anew(visitor: Visitor) -> None:
    visitor.open()
    read_text(visitor, "Who wrote")
    edit(visitor, "#classify-text", "")
    visitor.wait("document.querySelector('#classify-sent').textContent.startsWith('Type')")
    assert visitor.text("#classify-sums") == ""
    edit(visitor, "#classify-text", "Who?")
    visitor.wait(f"{SUMS}[0] === '4'")
    visitor.click("#classify-examples button", "Who wrote")
    visitor.wait("document.querySelector('#classify-summary').textContent.startsWith('human')")
    visitor.wait("document.querySelector('#classify-text').value === 'Who wrote Hamlet?'")
    visitor.wait(f"{SUMS}[0] === '17'")


def test_an_edit_before_the_end_restarts_from_the_nearest_state(
    visitor: Visitor, demo: httpx.Client
) -> None:
    visitor.open()
    read_text(visitor, "Who wrote Hamlet")
    before = chunks(visitor)
    edit(visitor, "#classify-text", "Who wrote it?")
    visitor.wait(f"requests.filter(({{ body }}) => body.input).length > {len(before)}")
    visitor.wait("requests.at(-1).body.input === '' && requests.at(-1).reply")
    (new,) = chunks(visitor)[len(before) :]
    kept = before[len("Who wrote ") - 1]["reply"]["results"][0]["state"]
    assert (new["body"]["input"], new["body"]["state"]) == ("it?", kept)
    last = visitor.requests(CLASSIFY)[-1]["reply"]["results"][0]
    assert last["scores"] == classified(demo, "Who wrote it?")["scores"]


def test_going_back_to_a_beginning_sends_no_text(visitor: Visitor) -> None:
    visitor.open()
    read_text(visitor, "Who wrote")
    before = chunks(visitor)
    edit(visitor, "#classify-text", "Who")
    kept = "Read: nothing. The browser had kept the memory of this point."
    visitor.wait(f"document.querySelector('#classify-sent').textContent === '{kept}'")
    assert chunks(visitor) == before


_REFUSE_ENDS = """
(() => {
  const send = window.fetch;
  window.fetch = async (path, options) => {
    const { input, state } = JSON.parse(options?.body ?? "{}");
    if (input !== "") return send(path, options);
    window.refused = state;
    const error = { code: "state_expired", message: "the state is too old" };
    return new Response(JSON.stringify({ error }), { status: 410 });
  };
})()
"""


def test_the_end_of_a_text_whose_state_is_refused_is_read_from_its_beginning(
    visitor: Visitor, demo: httpx.Client
) -> None:
    visitor.open()
    visitor.evaluate(_REFUSE_ENDS)
    edit(visitor, "#classify-text", QUESTION)
    visitor.wait("requests.some(({ body, reply }) => reply && body.input && !body.more)")
    label = classified(demo, QUESTION)["label"]
    visitor.wait(f"document.querySelector('#classify-summary').textContent.startsWith('{label}')")
    first, last = (each["body"] for each in visitor.requests(CLASSIFY))
    assert visitor.evaluate("window.refused")
    assert (first["input"], first["more"]) == (QUESTION, True)
    assert (last["input"], last["state"], last["more"]) == (QUESTION, None, False)
    assert visitor.evaluate("document.querySelector('#classify-problem').hidden")


def test_blanks_alone_have_no_label_and_are_no_error(visitor: Visitor) -> None:
    visitor.open()
    visitor.focus("#classify-text")
    visitor.type("  ")
    visitor.wait("requests.length && requests.at(-1).reply")
    assert visitor.text("#classify-summary") == ""
    assert visitor.evaluate("document.querySelector('#classify-problem').hidden")


def test_states_are_kept_in_bounds_and_an_edit_in_a_long_text_finds_one(visitor: Visitor) -> None:
    visitor.open()
    program = """
    (async () => {
      const { Prefixes } = await import("/page/prefixes.js");
      const chunks = [];
      const read = async (chunk) => {
        chunks.push(chunk);
        return { state: "x".repeat(%d) };
      };
      const prefixes = new Prefixes(read, {}, () => {});
      for (let length = 1; length <= 600; length += 1) await prefixes.follow("a".repeat(length));
      const again = [];
      for (const length of [599, 420, 300, 50]) {
        chunks.length = 0;
        await prefixes.follow(`${"a".repeat(length)}b`);
        again.push(chunks[0].length);
      }
      return again;
    })()
    """
    assert max(visitor.evaluate(program % 1000)) < 100
    assert max(visitor.evaluate(program % 10_000_000)) > 100  # fewer of large ones


def test_an_example_types_itself(visitor: Visitor) -> None:
    visitor.open()
    visitor.click("#classify-examples button", "Who wrote")
    visitor.wait("document.querySelector('#classify-summary').textContent.startsWith('human')")
    assert len(chunks(visitor)) > 1


def test_who_wants_no_motion_gets_an_example_at_once(visitor: Visitor) -> None:
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    visitor.page.call("Emulation.setEmulatedMedia", features=features)
    try:
        visitor.open()
        visitor.click("#classify-examples button", "Who wrote")
        visitor.wait("document.querySelector('#classify-summary').textContent.startsWith('human')")
        assert [each["body"]["input"] for each in chunks(visitor)] == ["Who wrote Hamlet?"]
    finally:
        visitor.page.call("Emulation.setEmulatedMedia", features=[])


def test_markup_in_a_text_stays_text(visitor: Visitor) -> None:
    visitor.open()
    edit(visitor, "#classify-text", "<img src=x>")
    visitor.wait("document.querySelector('#classify-sums').textContent")
    assert visitor.evaluate("document.querySelectorAll('main img').length") == 0


def test_characters_are_tinted_by_their_surprise(visitor: Visitor, demo: httpx.Client) -> None:
    text = "To be, or not"
    visitor.open("#score")
    visitor.focus("#score-text")
    visitor.type(text)
    visitor.wait(f"document.querySelector('#score-output').textContent === {json.dumps(text)}")
    whole = demo.post("/v1/score", json={"model": "shakespeare", "input": text}).json()
    assert visitor.text("#score-mean") == f"{whole['results'][0]['bits_per_character']:.2f}"
    body = {"model": "shakespeare", "prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}
    logprobs = demo.post(COMPLETE, json=body).json()["choices"][0]["logprobs"]["token_logprobs"]
    titles = visitor.evaluate(
        "[...document.querySelectorAll('#score-output span')].map((span) => span.title)"
    )
    assert titles[0] == ""
    for title, nats in zip(titles[1:], logprobs[1:], strict=True):
        assert title.startswith(f"{-nats / log(2):.1f} bits")
    sent = visitor.requests(COMPLETE)
    assert "".join(each["body"]["prompt"] for each in sent) == text


def test_what_surprises_most_has_a_name_if_it_cannot_be_seen(visitor: Visitor) -> None:
    visitor.open("#score")
    assert visitor.text("#score .about") == (
        "Tells how well shakespeare could guess each part from what comes before it."
    )
    worst = "document.querySelector('#score-worst').textContent"
    for text, name in (
        ("wherefo\nre", "a line break"),
        ("wherefo re", "a space"),
        ("aq", "\u201cq\u201d"),
    ):
        edit(visitor, "#score-text", text)
        visitor.wait(f"{worst}.startsWith('Most surprising: {name}, with ')")


def test_an_error_of_the_server_is_shown_as_its_sentence(visitor: Visitor) -> None:
    visitor.open("#score")
    visitor.focus("#score-text")
    visitor.type("caf\u00e9")
    visitor.wait("!document.querySelector('#score-problem').hidden")
    assert "the model's vocabulary has no '\u00e9'" in visitor.text("#score-problem")
    edit(visitor, "#score-text", "caf")
    visitor.wait("document.querySelector('#score-problem').hidden")


@pytest.fixture(scope="module")
def tagged(
    serve: Serve, visit: Visit, task_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Visitor, httpx.Client]]:
    """A visitor of a server with two taggers, of words and of features."""
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    folder = tmp_path_factory.mktemp("tagger") / "spans"
    save_random_model(folder, "tag", labels=TAGS, seed=3, **words)
    settings = {"models": None, "model_folders": (folder, task_folders / "motion")}
    with serve(**settings) as (client, _), visit(str(client.base_url)) as visitor:
        yield visitor, client


def test_spans_of_a_tagger_are_marked_as_in_the_whole_text(
    tagged: tuple[Visitor, httpx.Client],
) -> None:
    visitor, client = tagged
    text = f"\U0001f600 {QUESTION} who what where when a b c"
    visitor.open()
    visitor.focus("#tag-text")
    for count, character in enumerate(text, 1):
        visitor.type(character)
        visitor.wait(f"requests.filter((one) => one.reply && one.body.input).length === {count}")
    visitor.wait("requests.at(-1).body.input === '' && requests.at(-1).reply")
    reply = client.post("/v1/tag", json={"model": "spans", "input": text}).json()
    spans = reply["results"][0]["spans"]
    assert len(spans) > 3
    marks = visitor.evaluate(
        "[...document.querySelectorAll('#tag-output mark')].map((mark) => "
        "[mark.firstChild.data, mark.querySelector('small').textContent])"
    )
    assert marks == [[text[span["start"] : span["end"]], span["label"]] for span in spans]


def test_a_task_without_a_model_has_no_tab(
    tagged: tuple[Visitor, httpx.Client], visitor: Visitor
) -> None:
    shown = (
        "[...document.querySelectorAll('[role=tab]:not([hidden])')].map((tab) => tab.textContent)"
    )
    tagged[0].open()
    assert tagged[0].evaluate(shown) == ["Tag", "Models"]
    assert tagged[0].evaluate("document.querySelector('#tour-start').hidden")
    visitor.open()
    assert visitor.evaluate(shown) == ["Classify", "Generate", "Score", "Models"]
