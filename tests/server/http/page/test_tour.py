"""The tour shows step by step what a memory is good for, with the server's own answers."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.server.http.page.conftest import Visitor
from tests.server.http.page.test_typing import CLASSIFY, COMPLETE, classified, in_words

BEFORE, TYPED = "Who wrote ", "Hamlet?"  # the end of the long text, and what is typed after it
LENGTH = 160_000 + len(BEFORE)
PLACE = "document.querySelector('#tour-place').textContent"
NEXT = "document.querySelector('#tour-next')"
IS_SHOWN = f"{NEXT}.ariaDisabled === 'false' && {NEXT}.textContent !== 'Skip'"
SHOWN = "[...document.querySelectorAll('{}')].map((one) => one.textContent)"


@pytest.fixture
def still(visitor: Visitor) -> Iterator[Visitor]:
    """A visitor who wants no motion, on a newly opened page: letters are typed without pauses."""
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    visitor.page.call("Emulation.setEmulatedMedia", features=features)
    visitor.open()
    yield visitor
    visitor.page.call("Emulation.setEmulatedMedia", features=[])


def show(visitor: Visitor, step: int) -> str:
    """Go to a step, and return its caption."""
    visitor.click("#tour-start")
    visitor.wait(IS_SHOWN)
    for _ in range(step - 1):
        visitor.click("#tour-next")
        visitor.wait(IS_SHOWN)
    assert visitor.evaluate(PLACE) == f"Step {step} of 4"
    return visitor.text("#tour-caption")


def sent(visitor: Visitor, path: str) -> list[dict[str, Any]]:
    return [each["body"] for each in visitor.requests(path)]


def test_a_long_text_leaves_a_small_memory(still: Visitor) -> None:
    caption = show(still, 1)
    (request,) = still.requests(CLASSIFY)
    state = request["reply"]["results"][0]["state"]
    size = in_words(still, len(state))
    assert request["body"]["input"].endswith(f"? {BEFORE}")
    assert len(request["body"]["input"]) == LENGTH > 50 * len(state)
    assert request["body"]["more"]
    assert "89 printed pages (a few sentences, over and over, the last one unfinished)." in caption
    assert f"is a memory of {size}." in caption
    assert caption.endswith(
        "encrypted, and kept nothing. Any copy of the server can go on from it."
    )
    assert still.evaluate(SHOWN.format("#tour-sums dd")) == [size, "160 kB"]


def test_each_letter_goes_with_the_memory_and_without_the_text(still: Visitor) -> None:
    caption = show(still, 2)
    first, *letters, end = still.requests(CLASSIFY)
    assert [each["body"]["input"] for each in letters] == list(TYPED)
    for before, after in pairwise([first, *letters, end]):
        assert after["body"]["state"] == before["reply"]["results"][0]["state"]
    assert (end["body"]["input"], end["body"]["more"]) == ("", False)
    assert caption == (
        "Somebody typed on. Each letter is sent with the memory, and a new memory comes back; "
        "the long text stays here. Read: 7 characters. "
        "The answer: this asks for a person (label \u201chuman\u201d), 94.6 % sure. "
        "Would it be the same after reading everything again?"
    )
    assert still.evaluate(SHOWN.format("#tour-sums dd")) == ["7", f"{LENGTH + 7:,}"]
    assert still.text("#tour-text").endswith(f" {BEFORE}{TYPED}")


def test_the_answers_with_and_without_the_memory_stand_side_by_side(
    still: Visitor, demo: httpx.Client
) -> None:
    caption = show(still, 3)
    first, second, *_, kept, whole, alone = sent(still, CLASSIFY)
    assert (kept["input"], kept["state"]) == (TYPED, second["state"])
    assert (whole["input"], whole["state"]) == (first["input"] + TYPED, None)
    assert (alone["input"], alone["state"]) == (TYPED, None)
    answers = [classified(demo, body["input"]) for body in (whole, alone)]
    expected, other = (
        f"\u201c{each['label']}\u201d, {100 * each['score']!r} % sure" for each in answers
    )
    assert [each["label"] for each in answers] == ["human", "number"]
    assert still.evaluate(SHOWN.format("#tour-sums dd")) == [expected, expected, other]
    rows, times = zip(
        *(row.split(" read") for row in still.evaluate(SHOWN.format("#tour-sums dt"))),
        strict=True,
    )
    assert rows == (
        "With the memory: 7 characters",
        f"Without it, everything again: {LENGTH + 7:,} characters",
        "Without it, only what is new: 7 characters",
    )
    assert all(re.fullmatch(r", in [\d.]+ m?s", time) for time in times[:2])
    assert times[2] == ""
    assert caption == (
        "The same answer, to the last digit. The memory is not a copy of the text. "
        "It is all that the model makes of a text, so going on from it is the same as reading "
        "everything again. With only \u201cHamlet?\u201d and no memory, the answer is wrong."
    )


def test_an_answer_that_differs_is_not_called_the_same(still: Visitor) -> None:
    show(still, 2)
    still.evaluate(
        "(() => { const send = window.fetch; window.fetch = async (...request) => {"
        "const body = await (await send(...request)).json(); body.results[0].scores.human += 1e-9;"
        "return new Response(JSON.stringify(body)); }; })()"
    )
    still.click("#tour-next")
    still.wait(IS_SHOWN)
    assert still.text("#tour-caption").startswith("Not the same answer. With only")


def test_three_endings_continue_from_one_memory_and_end_with_a_word(
    still: Visitor, demo: httpx.Client
) -> None:
    show(still, 4)
    begin, *ends = still.requests(COMPLETE)
    state = begin["reply"]["choices"][0]["state"]
    assert begin["body"]["max_tokens"] == 0
    assert [each["body"]["prompt"] for each in ends] == [""] * 3
    assert [each["body"]["state"] for each in ends] == [state] * 3
    endings = still.evaluate(SHOWN.format("#tour-text .ending"))
    assert len(set(endings)) == 3
    replies = [demo.post(COMPLETE, json=each["body"]).json() for each in ends]
    texts = [reply["choices"][0]["text"] for reply in replies]  # the page got them in any order
    for ending in endings:
        (text,) = (each for each in texts if each.startswith(ending))
        assert ending.endswith(".")
        assert text[len(ending)].isspace()
    size = in_words(still, len(state))
    caption = still.text("#tour-caption")
    assert caption == (
        "A memory can be copied. Another model, which writes like Shakespeare, "
        f"read the shaded lines once. From three copies of its memory ({size} each) "
        "it wrote three endings. (A small demonstration: do not expect sense.)"
    )


def test_the_tour_ends_where_one_can_try_it(still: Visitor) -> None:
    show(still, 4)
    still.click("#tour-next", "Try it yourself")
    assert still.evaluate("document.querySelector('#tour').hidden")
    assert not still.evaluate("document.querySelector('#generate').hidden")
    assert still.evaluate("document.activeElement.name") == "prompt"
    still.type("Dear pupils")
    assert still.evaluate("document.activeElement.value") == "Dear pupils"


def test_closing_gives_the_focus_back_to_the_button_that_opened(still: Visitor) -> None:
    show(still, 1)
    assert still.evaluate("document.querySelector('#tour-start').hidden")
    assert still.evaluate("document.activeElement.id") == "tour-next"
    still.click("#tour-close")
    assert still.evaluate("document.querySelector('#tour').hidden")
    assert still.evaluate("document.activeElement.id") == "tour-start"
    assert not still.evaluate("document.querySelector('#tour-start').hidden")


def test_the_tour_says_that_the_model_reads(still: Visitor) -> None:
    show(still, 2)
    assert still.text("#tour-sums")
    still.evaluate("window.fetch = () => new Promise(() => {})")
    still.click("#tour-start")
    assert still.text("#tour-caption").strip() == "Reading\u2026"
    assert still.text("#tour-text") + still.text("#tour-sums") == ""


def test_a_step_ends_before_the_next_one(still: Visitor) -> None:
    still.evaluate(
        "for (const id of ['start', 'next', 'next']) document.getElementById(`tour-${id}`).click()"
    )
    still.wait(IS_SHOWN)
    assert still.evaluate(PLACE) == "Step 1 of 4"


def test_a_step_that_fails_is_tried_again(still: Visitor) -> None:
    show(still, 1)
    still.evaluate(
        "(() => { const send = window.fetch; window.fetch = async () => { window.fetch = send;"
        "const error = { code: 'overloaded', message: 'too busy' };"
        "return new Response(JSON.stringify({ error }), { status: 429 }); }; })()"
    )
    still.click("#tour-next")
    still.wait("!document.querySelector('#tour-problem').hidden")
    assert still.text("#tour-problem") == "too busy"
    assert still.text("#tour-next") == "Try again"
    still.click("#tour-next")
    still.wait(f"{IS_SHOWN} && {PLACE} === 'Step 2 of 4'")
    assert still.evaluate("document.querySelector('#tour-problem').hidden")
    assert still.text("#tour-caption").startswith("Somebody typed on.")


def test_letters_are_typed_slowly_enough_to_read_and_closing_ends_them(visitor: Visitor) -> None:
    visitor.open()
    show(visitor, 1)
    visitor.evaluate(
        "(() => { const wait = window.setTimeout; window.pauses = [];"
        "window.setTimeout = (work, pause) => { pauses.push(pause); "
        "if (pauses.length === 5) document.querySelector('#tour-close').click();"
        "return wait(work, 0); }; })()"
    )
    visitor.click("#tour-next")
    visitor.wait("pauses.length === 5 && document.querySelector('#tour').hidden")
    assert min(visitor.evaluate("pauses")) >= 300
    visitor.click("#tour-start")
    visitor.wait(IS_SHOWN)
    typed = [body["input"] for body in sent(visitor, CLASSIFY)[1:-1]]
    assert typed == list(TYPED[:4])


def test_a_visitor_can_skip_the_pauses_between_letters(visitor: Visitor) -> None:
    visitor.open()
    show(visitor, 1)
    visitor.evaluate(  # the second pause lasts for ever
        "(() => { const wait = window.setTimeout; window.pauses = 0;"
        "window.setTimeout = (work) => (pauses += 1) === 2 || wait(work, 0); })()"
    )
    visitor.click("#tour-next")
    visitor.wait("pauses === 2")
    assert visitor.text("#tour-caption").startswith("Now somebody types on.")
    visitor.click("#tour-next", "Skip")
    visitor.wait(f"{IS_SHOWN} && {PLACE} === 'Step 2 of 4'")
    assert visitor.text("#tour-caption").startswith("Somebody typed on.")
    assert [body["input"] for body in sent(visitor, CLASSIFY)[1:-1]] == list(TYPED)


def test_the_bar_of_a_few_characters_is_seen(still: Visitor) -> None:
    show(still, 2)
    bar = "getComputedStyle(document.querySelector('#tour-sums .bar'), '::before')"
    assert float(still.evaluate(f"{bar}.width").removesuffix("px")) >= 8
    assert still.evaluate(f"{bar}.transform") == "none"


@pytest.mark.parametrize(("width", "height"), [(375, 740), (1280, 800)])
def test_each_step_is_seen_as_a_whole(still: Visitor, width: int, height: int) -> None:
    still.page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
    )  # fmt: skip
    place = (
        "(({ top, bottom }) => [top, bottom])"
        "(document.querySelector('#tour').getBoundingClientRect())"
    )
    try:
        still.click("#tour-start")
        for _ in range(4):
            still.wait(IS_SHOWN)
            top, bottom = still.evaluate(place)
            assert 0 <= top < bottom <= height
            still.click("#tour-next")
    finally:
        still.page.call("Emulation.clearDeviceMetricsOverride")
