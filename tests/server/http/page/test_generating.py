"""Streams of text on the page: the API's own text, that forks, goes back, travels and survives."""

import json
from typing import Any

import httpx
import pytest

from tests.server.http.page.conftest import Visitor

COMPLETE = "/v1/completions"
OPTIONS: dict[str, Any] = {"model": "shakespeare", "temperature": 0.8, "top_p": 1}


def completed(client: httpx.Client, prompt: str, tokens: int, **options: Any) -> str:
    """The prompt and what the API writes after it."""
    body = {**OPTIONS, "prompt": prompt, "max_tokens": tokens, **options}
    reply = client.post(COMPLETE, json=body)
    assert reply.status_code == 200, reply.text
    return prompt + str(reply.json()["choices"][0]["text"])


def write(visitor: Visitor, **fields: object) -> None:
    """Write a text, and wait for its end."""
    begin(visitor, **fields)
    wait_idle(visitor)


def begin(visitor: Visitor, **fields: object) -> None:
    visitor.click("#tab-generate")
    visitor.fill(**fields)
    visitor.click("#generate-form button")


def wait_idle(visitor: Visitor, lanes: int = 1) -> None:
    """Wait until there are so many streams, and none of them is written."""
    visitor.wait(
        f"document.querySelectorAll('.lane').length === {lanes} "
        "&& !document.querySelector('.lane.running')"
    )


def texts(visitor: Visitor) -> list[str]:
    """The text of each stream."""
    shown: list[str] = visitor.evaluate(
        "[...document.querySelectorAll('.lane .text')].map((text) => text.textContent)"
    )
    return shown


def go_back(visitor: Visitor, position: int, lane: int = 0) -> None:
    visitor.evaluate(
        f"(() => {{ const slider = document.querySelectorAll('.lane input[type=range]')[{lane}];"
        f"slider.value = {position}; slider.dispatchEvent(new Event('input')); }})()"
    )


def wait_drawn(visitor: Visitor, steps: int) -> None:
    """Wait until the page has asked for the numbers of the state after so many steps."""
    visitor.wait(
        "requests.some(({ path, reply }) => "
        f"path === '/v1/state' && reply && reply.steps === {steps})"
    )


def link_of(visitor: Visitor) -> str:
    """The link to the point that the first stream shows."""
    visitor.click(".lane button", "Link")
    visitor.wait("document.querySelector('.lane .copied').textContent")
    link: str = visitor.evaluate("document.querySelector('.lane input[readonly]').value")
    return link


def test_a_seed_gives_the_text_of_the_api(visitor: Visitor, demo: httpx.Client) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=300)
    assert texts(visitor) == [completed(demo, "ROMEO:", 300, seed=7)]
    wait_drawn(visitor, 305)
    views = visitor.requests("/v1/state")
    assert {each["status"] for each in views} == {200}
    assert len(views[-1]["reply"]["entries"]) == 6
    visitor.wait(
        "(() => { const canvas = document.querySelector('.strip');"
        "return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
        ".some((value) => value > 0); })()"
    )
    caption = ": 2304 numbers, however long the text."
    visitor.wait(f"document.querySelector('.caption').textContent.endsWith({json.dumps(caption)})")
    assert visitor.text(".lane .status") == "memory 13 kB"


@pytest.mark.parametrize(("width", "height"), [(375, 740), (1280, 800)])
def test_a_text_that_is_written_is_in_view_with_its_buttons(
    visitor: Visitor, width: int, height: int
) -> None:
    with visitor.screen(width, height):
        visitor.open()
        write(visitor, prompt="ROMEO:", seed=7, max_tokens=20)
        for part in (".text", ".buttons"):
            place = f"document.querySelector('.lane {part}').getBoundingClientRect()"
            visitor.wait(f"{place}.top >= 0 && {place}.bottom <= {height}")


def test_a_stopped_text_continues_as_if_it_had_not_stopped(
    visitor: Visitor, demo: httpx.Client
) -> None:
    visitor.open()
    begin(visitor, prompt="JULIET:", seed=11, max_tokens=20_000)
    visitor.wait("document.querySelector('.lane .text').textContent.length > 300")
    visitor.click(".lane button", "Stop")
    wait_idle(visitor)
    (stopped,) = texts(visitor)
    assert len(stopped) < 20_000
    visitor.fill(max_tokens=100)
    visitor.click(".lane button", "Continue")
    wait_idle(visitor)
    (text,) = texts(visitor)
    assert text == completed(demo, "JULIET:", len(text) - 7, seed=11)
    assert len(text) == len(stopped) + 100


def test_forks_run_side_by_side_from_the_same_point(visitor: Visitor, demo: httpx.Client) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=200)
    go_back(visitor, 101)
    visitor.click(".lane button", "Fork here")
    wait_idle(visitor, 3)
    first, *forks = texts(visitor)
    assert first == completed(demo, "ROMEO:", 200, seed=7)
    start = first[:101]
    body = {**OPTIONS, "prompt": start, "max_tokens": 0, "seed": 7, "return_state": True}
    state = demo.post(COMPLETE, json=body).json()["choices"][0]["state"]
    for seed, fork in zip((8, 9), forks, strict=True):
        assert fork == start + completed(demo, "", 200, state=state, seed=seed)
    assert len({first[:301], *forks}) == 3
    origin = "[...document.querySelectorAll('.lane header')].map((one) => one.textContent)"
    for heading in visitor.evaluate(origin)[1:]:
        assert "goes on from Text 1, character 101" in heading
    shared = "[...document.querySelectorAll('.lane .shared')].map((one) => one.textContent)"
    assert visitor.evaluate(shared) == ["", start, start]
    seen = """
    [...document.querySelectorAll(".lane:not(:first-child) .text")].map((text) => {
      const { bottom } = text.querySelector(".shared").getBoundingClientRect();
      const { top, bottom: end } = text.getBoundingClientRect();
      return top < bottom && bottom < end;
    })
    """
    assert visitor.evaluate(seen) == [True, True]


def test_streams_beyond_the_room_are_refused_in_words(visitor: Visitor) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=20)
    for lanes in (3, 5):
        visitor.click(".lane button", "Fork")
        wait_idle(visitor, lanes)
    visitor.click(".lane button", "Fork")
    assert "remove some" in visitor.text("#generate-problem")
    visitor.click(".lane button", "Remove")
    visitor.click(".lane button", "Fork")
    wait_idle(visitor, 6)
    assert visitor.evaluate("document.querySelector('#generate-problem').hidden")


def test_a_text_goes_back_to_any_character_and_continues_as_before(visitor: Visitor) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=120)
    (text,) = texts(visitor)
    for position in (100, 51, 6):
        go_back(visitor, position)
        assert visitor.text(".lane output") == f"character {position} of {len(text)}"
        visitor.fill(max_tokens=len(text) - position)
        visitor.click(".lane button", "Continue here")
        wait_idle(visitor)
        assert texts(visitor) == [text]


def test_a_click_chooses_a_character(visitor: Visitor) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=120)
    place = """
    (() => {
      const text = document.querySelector(".lane .text");
      text.scrollIntoView();
      text.scrollTop = 0;
      const range = document.createRange();
      range.setStart(text.querySelector("span:not(:empty)").firstChild, 10);
      range.setEnd(text.querySelector("span:not(:empty)").firstChild, 11);
      const { left, top, height } = range.getBoundingClientRect();
      return { x: left + 1, y: top + height / 2 };
    })()
    """
    wait_drawn(visitor, 125)
    where = visitor.evaluate(place)  # nothing moves any more
    for kind in ("mousePressed", "mouseReleased"):
        visitor.page.call(
            "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where
        )
    visitor.wait("document.querySelector('.lane output').textContent.startsWith('character 10 of')")


def test_a_beginning_that_is_left_empty_is_refused_in_words(visitor: Visitor) -> None:
    visitor.open()
    begin(visitor, prompt="", max_tokens=10)
    assert visitor.text("#generate-problem") == "Write a beginning first."
    assert texts(visitor) == []
    write(visitor, prompt="ROMEO:", max_tokens=10)
    assert visitor.evaluate("document.querySelector('#generate-problem').hidden")


def test_a_setting_that_is_refused_is_shown(visitor: Visitor) -> None:
    visitor.open()
    begin(visitor, prompt="ROMEO:", max_tokens=0)
    assert visitor.evaluate("document.querySelector('#generate-form details').open")
    assert texts(visitor) == []


def test_a_link_continues_exactly_there(visitor: Visitor, demo: httpx.Client) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=150)
    link = link_of(visitor)
    size = visitor.evaluate(f"import('/page/format.js').then(({{ bytes }}) => bytes({len(link)}))")
    assert visitor.text(".lane .copied").endswith(
        f" continues from here ({size}). It works only on this computer. "
        "The text is in the link so that your friend can see it; the server gets only the memory."
    )
    address, _, fragment = link.partition("#")
    assert address == f"{visitor.url}/"
    visitor.open(f"#{fragment}")
    assert texts(visitor) == [completed(demo, "ROMEO:", 150, seed=7)]
    assert visitor.requests(COMPLETE) == []
    slider = "document.querySelector('.lane input[type=range]')"
    assert visitor.evaluate(f"[{slider}.min, {slider}.value, {slider}.max]") == ["0", "156", "156"]
    visitor.fill(max_tokens=150)
    visitor.click(".lane button", "Continue")
    wait_idle(visitor)
    assert texts(visitor) == [completed(demo, "ROMEO:", 300, seed=7)]
    (request,) = visitor.requests(COMPLETE)
    assert (request["body"]["prompt"], "seed" in request["body"]) == ("", False)


def test_a_link_carries_the_point_that_is_shown(visitor: Visitor, demo: httpx.Client) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=150)
    go_back(visitor, 101)
    visitor.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }; 0")
    link = link_of(visitor)
    assert visitor.evaluate("window.copied") == link
    assert visitor.text(".lane .copied").startswith("Copied. Whoever opens it continues from here")
    fragment = link.partition("#")[2]
    visitor.open(f"#{fragment}")
    text = completed(demo, "ROMEO:", 150, seed=7)
    assert texts(visitor) == [text[:101]]
    visitor.fill(max_tokens=55)
    visitor.click(".lane button", "Continue")
    wait_idle(visitor)
    assert texts(visitor) == [text]


def test_a_link_to_before_any_text_is_refused_in_words(visitor: Visitor) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=20)
    go_back(visitor, 0)
    visitor.click(".lane button", "Link")
    visitor.wait("!document.querySelector('.lane .problem').hidden")
    assert visitor.text(".lane .problem") == "There is no memory yet: choose a later character."


def test_a_link_shows_the_end_of_its_text(visitor: Visitor) -> None:
    visitor.open()
    write(visitor, prompt="ROMEO:", seed=7, max_tokens=700)
    fragment = link_of(visitor).partition("#")[2]
    visitor.open(f"#{fragment}")
    text = "document.querySelector('.lane .text')"
    assert visitor.evaluate(f"{text}.scrollTop") > 0
    assert visitor.evaluate(f"{text}.scrollTop + {text}.clientHeight + 2 > {text}.scrollHeight")


CUT = "This link was cut or changed, so its memory cannot be read. Ask for it again."


def test_a_changed_link_says_what_is_wrong_and_its_text_starts_again(visitor: Visitor) -> None:
    visitor.open("#generate&model=shakespeare&state=AAAA&text=%3Cb%3Ehello")
    assert texts(visitor) == ["<b>hello"]
    problem = "document.querySelector('.lane .problem')"
    visitor.wait(f"!{problem}.hidden")
    assert visitor.text(".lane .problem") == CUT
    visitor.fill(max_tokens=20)
    visitor.click(".lane button", "Start again from this text")
    visitor.wait("requests.some(({ body }) => body.stream)")
    wait_idle(visitor)


def test_a_link_that_lost_its_state_says_so(visitor: Visitor) -> None:
    visitor.open("#generate&model=shakespeare&temperature=0.8&text=hel")
    assert visitor.text("#generate-problem") == CUT
    assert texts(visitor) == []


_BROKEN_ONCE = """
(async () => {
  const { Api, Unreachable } = await import("/page/api.js");
  const { TextStream } = await import("/page/text_stream.js");
  const api = new Api({ key: null }, () => {});
  const stream = api.stream.bind(api);
  let left = 4;
  api.stream = async function* (...request) {
    for await (const event of stream(...request)) {
      left -= 1;
      if (left === 0) throw new Unreachable();
      yield event;
    }
  };
  const start = [{ at: 0, state: null, seed: 7 }];
  const text = new TextStream(api, %s, "ROMEO:", start, %d);
  await text.run(300);
  return [text.text, left < 0, text.problem];
})()
"""


@pytest.mark.parametrize("interval", [1, 40, 1000])
def test_text_after_the_last_state_is_generated_again_after_a_break(
    visitor: Visitor, demo: httpx.Client, interval: int
) -> None:
    visitor.open()
    program = _BROKEN_ONCE % (json.dumps(OPTIONS), interval)
    text, broken, problem = visitor.evaluate(program)
    assert (broken, problem) == (True, "")
    assert text == completed(demo, "ROMEO:", 300, seed=7)


_BROKEN_AND_REFUSED = """
(async () => {
  const { Api, ApiError, Unreachable } = await import("/page/api.js");
  const { TextStream } = await import("/page/text_stream.js");
  const api = new Api({ key: null }, () => {});
  const stream = api.stream.bind(api);
  let broken = false;
  api.stream = async function* (...request) {
    if (broken) throw new ApiError("unknown key", "state_unknown_key", 422);
    for await (const event of stream(...request)) {
      yield event;
      broken = true;
      throw new Unreachable();
    }
  };
  const start = [{ at: 0, state: null, seed: 7 }];
  const text = new TextStream(api, %s, "ROMEO:", start, 1000);
  await text.run(300);
  return [text.text, text.isRefused, text.problem];
})()
"""


def test_a_text_stays_whole_if_the_server_refuses_its_state_after_a_break(
    visitor: Visitor, demo: httpx.Client
) -> None:
    visitor.open()
    text, refused, problem = visitor.evaluate(_BROKEN_AND_REFUSED % json.dumps(OPTIONS))
    assert refused
    assert problem.startswith("This text's state was made by a server with another key")
    assert len(text) > len("ROMEO:")
    assert completed(demo, "ROMEO:", 300, seed=7).startswith(text)
