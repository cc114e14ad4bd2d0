"""The page as a whole: keys, keyboard, models, themes and a narrow screen."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.browser import opened
from tests.server.http.page.conftest import KEYS, MODELS, Visit, Visitor
from tests.server.keys import ACME
from tests.server.observing import until
from tests.server.processes import serving

SELECTED = "document.querySelector('[role=tab][aria-selected=true]').textContent"
ASKED = "document.querySelector('#key-dialog').open"


@pytest.fixture(scope="module")
def guarded(visit: Visit) -> Iterator[Visitor]:
    """A visitor of a server that needs a key."""
    settings = {"state_keys": KEYS, "grpc_port": "off", "api_keys": f"acme:{ACME}"}
    with serving(*MODELS, **settings) as (client, _), visit(str(client.base_url)) as visitor:
        yield visitor


def send_key(visitor: Visitor, key: str) -> None:
    visitor.evaluate(f"document.querySelector('#key-input').value = {json.dumps(key)}")
    visitor.click("#key-form button", "Use this key")


def test_a_key_is_asked_for_once_and_kept_for_the_session_alone(guarded: Visitor) -> None:
    assert guarded.evaluate(ASKED)
    assert guarded.evaluate("document.activeElement.id") == "key-input"
    assert guarded.text("#key-problem") == ""
    send_key(guarded, "a wrong key")
    guarded.wait("!document.querySelector('#key-problem').hidden")
    assert "key" in guarded.text("#key-problem")
    assert guarded.evaluate(ASKED)
    send_key(guarded, ACME)
    guarded.wait(f"!document.body.ariaBusy && !{ASKED}")
    guarded.focus("#classify-text")
    guarded.type("Who wrote Hamlet?")
    guarded.wait("document.querySelector('#classify-summary').textContent.startsWith('human')")
    guarded.open("#generate")  # the same tab has the key
    assert not guarded.evaluate(ASKED)
    assert guarded.evaluate("Object.values(sessionStorage)") == [ACME]
    assert guarded.evaluate("localStorage.length + document.cookie.length") == 0
    assert ACME not in guarded.evaluate("location.href")


def test_who_has_no_key_is_told_what_the_server_says(guarded: Visitor) -> None:
    guarded.evaluate("sessionStorage.clear()")
    guarded.open()
    guarded.click("#key-cancel")
    guarded.wait("!document.querySelector('#start-problem').hidden")
    assert guarded.text("#start-problem").startswith("this server needs an API key")


def test_the_arrow_keys_move_between_tabs(visitor: Visitor) -> None:
    visitor.open()
    visitor.focus("#tab-classify")
    for key, name in (
        ("ArrowRight", "Generate"),
        ("End", "Models"),
        ("ArrowRight", "Classify"),
        ("ArrowLeft", "Models"),
        ("Home", "Classify"),
    ):
        visitor.press(key)
        assert visitor.evaluate(SELECTED) == name
        assert visitor.evaluate("document.activeElement.textContent") == name
        shown = "[...document.querySelectorAll('[role=tabpanel]:not([hidden])')].map(({id}) => id)"
        assert visitor.evaluate(shown) == [name.lower()]


def test_the_address_names_the_tab(visitor: Visitor) -> None:
    visitor.open("#score")
    assert visitor.evaluate(SELECTED) == "Score"
    visitor.click("#tab-models")
    assert visitor.evaluate("location.hash") == "#models"


def test_models_show_their_state_and_what_they_do_now(visitor: Visitor, demo: httpx.Client) -> None:
    visitor.open("#models")
    visitor.wait("document.querySelectorAll('#models-rows tr').length === 2")
    row = "[...document.querySelector('#models-rows tr').children].map((cell) => cell.textContent)"
    assert visitor.evaluate(row)[:5] == ["question-type", "classify", "1", "float32", "1.5 kB"]

    def busy() -> list[str]:
        demo.post("/v1/classify", json={"model": "question-type", "input": "Who?"})
        cells: list[str] = visitor.evaluate(row)
        return cells[5:]

    until(lambda: busy()[1].endswith(" ms"))
    assert float(busy()[0]) > 0


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("tab", ["classify", "generate", "score", "models"])
def test_no_panel_is_wider_than_the_screen(visitor: Visitor, width: int, tab: str) -> None:
    visitor.page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
    )  # fmt: skip
    try:
        visitor.open(f"#{tab}")
        wide = "document.documentElement.scrollWidth"
        assert visitor.evaluate(wide) <= width
    finally:
        visitor.page.call("Emulation.clearDeviceMetricsOverride")


# The contrast of two colours by WCAG 2.2, of an element's text and what is behind it.
_CONTRAST = """
(() => {
  const brightness = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(one.parentElement) : colour;
  };
  const texts = [...document.querySelectorAll("main *, header *")].filter(
    (one) => one.checkVisibility() && [...one.childNodes].some(({ data }) => data?.trim()),
  );
  return texts.map((one) => {
    const both = [getComputedStyle(one).color, behind(one)].map(brightness);
    const [low, high] = both.sort((a, b) => a - b);
    return [one.textContent.slice(0, 30), (high + 0.05) / (low + 0.05)];
  });
})()
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["classify", "generate", "score", "models"])
def test_text_has_the_contrast_that_people_need(visitor: Visitor, theme: str, tab: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": theme}]
    visitor.page.call("Emulation.setEmulatedMedia", features=features)
    visitor.open(f"#{tab}")
    texts = visitor.evaluate(_CONTRAST)
    assert len(texts) > 8
    assert [(text, ratio) for text, ratio in texts if ratio < 4.5] == []
    paper = visitor.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(251, 250, 247)") == (theme == "light")


# What a screen reader needs: names of all controls, panels that name their tabs, one h1.
_NAMELESS = """
[...document.querySelectorAll("main :is(button, input, select, textarea, canvas)")]
  .filter((one) => !(one.labels?.length || one.ariaLabel || one.ariaHidden))
  .filter((one) => one.tagName !== "BUTTON" || !one.textContent.trim())
  .map((one) => one.outerHTML)
"""


def test_a_screen_reader_finds_names_and_landmarks(visitor: Visitor) -> None:
    visitor.open("#generate")
    visitor.click("#generate-form button")
    visitor.wait("document.querySelector('.lane')")
    assert visitor.evaluate(_NAMELESS) == []
    assert visitor.evaluate("document.querySelectorAll('h1').length") == 1
    assert visitor.evaluate("document.querySelectorAll('main, header, nav').length") >= 3
    assert visitor.evaluate("document.documentElement.lang") == "en"
    named = (
        "[...document.querySelectorAll('[role=tabpanel]')].every((panel) => "
        "document.getElementById(panel.getAttribute('aria-labelledby')).role === 'tab')"
    )
    assert visitor.evaluate(named)


def test_the_policy_refuses_markup_and_styles_from_scripts(
    demo: httpx.Client, tmp_path: Path
) -> None:
    with opened("about:blank", tmp_path) as page:
        visitor = Visitor(page, str(demo.base_url).rstrip("/"))
        visitor.open()
        assert visitor.problems() == []
        refused = visitor.evaluate(
            "(() => { try { document.body.innerHTML = '<i>x</i>'; return false; } "
            "catch (error) { return error instanceof TypeError; } })()"
        )
        assert refused
        visitor.evaluate("document.body.setAttribute('style', 'color: red')")
        assert any("Content Security Policy" in each for each in visitor.problems())
