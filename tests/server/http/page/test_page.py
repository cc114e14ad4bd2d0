"""The page as a whole: keys, keyboard, models, themes and a narrow screen."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.browser import Browser
from tests.npm import installed
from tests.server.http.page.conftest import KEYS, MODELS, Visit, Visitor
from tests.server.http.page.test_generating import go_back, wait_idle, write
from tests.server.keys import ACME
from tests.server.observing import until
from tests.server.processes import serving

SELECTED = "document.querySelector('[role=tab][aria-selected=true]').textContent"
KEY_DIALOG_OPEN = "document.querySelector('#key-dialog').open"


@pytest.fixture(scope="module")
def guarded(visit: Visit) -> Iterator[Visitor]:
    """A visitor of a server that needs a key."""
    settings = {"state_keys": KEYS, "grpc_port": "off", "api_keys": f"acme:{ACME}"}
    with serving(*MODELS, **settings) as (client, _), visit(str(client.base_url)) as visitor:
        yield visitor


def send_key(visitor: Visitor, key: str) -> None:
    visitor.evaluate(f"document.querySelector('#key-input').value = {json.dumps(key)}")
    visitor.click("#key-form button", "Use this key")


def test_a_key_is_requested_once_and_kept_for_the_session_alone(guarded: Visitor) -> None:
    assert guarded.evaluate(KEY_DIALOG_OPEN)
    assert guarded.evaluate("document.activeElement.id") == "key-input"
    assert guarded.text("#key-problem") == ""
    send_key(guarded, "a wrong key")
    guarded.wait("!document.querySelector('#key-problem').hidden")
    assert "key" in guarded.text("#key-problem")
    assert guarded.evaluate(KEY_DIALOG_OPEN)
    send_key(guarded, ACME)
    guarded.wait(f"!document.body.ariaBusy && !{KEY_DIALOG_OPEN}")
    guarded.focus("#classify-text")
    guarded.type("Who wrote Hamlet?")
    guarded.wait("document.querySelector('#classify-summary').textContent.startsWith('human')")
    guarded.open("#generate")  # the same tab has the key
    assert not guarded.evaluate(KEY_DIALOG_OPEN)
    assert guarded.evaluate("Object.values(sessionStorage)") == [ACME]
    assert guarded.evaluate("localStorage.length + document.cookie.length") == 0
    assert ACME not in guarded.evaluate("location.href")


def test_a_visitor_without_a_key_sees_the_error_of_the_server(guarded: Visitor) -> None:
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
    name, *facts = visitor.evaluate(row)[:5]
    assert name.startswith("question-type Says what a question asks for")
    assert facts == ["classify", "1", "float32", "1.5 kB"]
    heads = "[...document.querySelectorAll('.models thead th')].map((one) => one.textContent)"
    assert visitor.evaluate(heads)[4] == "Memory"

    def busy() -> list[str]:
        demo.post("/v1/classify", json={"model": "question-type", "input": "Who?"})
        cells: list[str] = visitor.evaluate(row)
        return cells[5:]

    until(lambda: busy()[1].endswith(" ms"))
    assert float(busy()[0]) > 0


@pytest.mark.parametrize("tab", ["classify", "generate", "score", "models"])
def test_no_panel_is_wider_than_the_screen(visitor: Visitor, tab: str) -> None:
    try:
        visitor.open(f"#{tab}")
        for width in (320, 1200):
            visitor.page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
            )  # fmt: skip
            wide = "document.documentElement.scrollWidth"
            assert visitor.evaluate(wide) <= width
            ends = "[...document.querySelectorAll('.examples button')].map((one) => one."
            assert max(visitor.evaluate(f"{ends}getBoundingClientRect().right)")) <= width
    finally:
        visitor.page.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize(("width", "height"), [(375, 740), (1280, 800)])
def test_the_label_of_an_example_is_seen_without_scrolling(
    visitor: Visitor, width: int, height: int
) -> None:
    with visitor.screen(width, height):
        visitor.open()
        visitor.click("#classify-examples button", "Who wrote")
        visitor.wait("document.querySelector('.bars .best')")
        assert visitor.evaluate("scrollY") == 0
        seen = "document.querySelector('.bars .best').getBoundingClientRect().bottom"
        assert visitor.evaluate(seen) < height


def test_the_first_paint_needs_two_fonts_and_waits_for_no_file(visitor: Visitor) -> None:
    visitor.open()
    fonts = """
    (() => {
      const seen = [...document.querySelectorAll(".top *, h1, .lead, .lead *, .start *")];
      const font = ({ fontSize, fontWeight }) => `${fontSize} ${fontWeight}`;
      return [...new Set(seen.map((one) => font(getComputedStyle(one))))];
    })()
    """
    sizes, weights = zip(*(font.split() for font in visitor.evaluate(fonts)), strict=True)
    assert len(sizes) <= 2
    assert set(weights) == {"400"}  # another weight is another file of the system
    early = """
    (() => {
      const { startTime: paint } = performance.getEntriesByName("first-contentful-paint")[0];
      const files = performance.getEntriesByType("resource");
      return files.filter(({ startTime }) => startTime < paint).map(({ name }) => name);
    })()
    """
    assert visitor.evaluate(early) == []


_AUDIT = """
axe.run().then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes[0].html]))
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The program of axe-core, which finds what keeps people from using a page."""
    core = installed(Path(__file__).parent / "axe", "node_modules/axe-core/axe.min.js", "axe-core")
    return core.read_text()


@pytest.mark.parametrize("tab", ["tour", "classify", "generate", "score", "models"])
def test_an_audit_finds_nothing_that_keeps_people_out(visitor: Visitor, axe: str, tab: str) -> None:
    visitor.open(f"#{tab}")
    if tab == "generate":
        write(visitor, prompt="ROMEO:", seed=7, max_tokens=60)
        go_back(visitor, 30)
    elif tab == "tour":
        visitor.click("#tour-start")
        visitor.wait("document.querySelector('#tour-next').ariaDisabled === 'false'")
    elif tab != "models":
        visitor.focus(f"#{tab}-text")
        visitor.type("Who is")
        visitor.wait("requests.length && requests.at(-1).reply")
    visitor.evaluate(f"{axe};true")
    for theme, paper in (("light", "rgb(251, 250, 247)"), ("dark", "rgb(22, 20, 18)")):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        visitor.page.call("Emulation.setEmulatedMedia", features=features)
        assert visitor.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert visitor.evaluate(_AUDIT) == []


def test_a_text_is_written_forked_and_stopped_by_keyboard_alone(visitor: Visitor) -> None:
    visitor.open()
    focused = "document.activeElement.name || document.activeElement.textContent"

    def tab_to(name: str) -> None:
        for _ in range(40):
            visitor.press("Tab")
            if visitor.evaluate(focused).startswith(name):
                return
        pytest.fail(f"the Tab key does not get to {name}")

    tab_to("Classify")
    visitor.press("ArrowRight")
    tab_to("prompt")
    tab_to("Settings")
    visitor.press("Enter")
    tab_to("max_tokens")
    visitor.fill(max_tokens=80)
    tab_to("Write")
    visitor.press("Enter")
    wait_idle(visitor)
    visitor.wait("document.querySelector('.lane .text').textContent.length === 86")
    tab_to("Fork")
    visitor.press("Enter")
    wait_idle(visitor, 3)
    tab_to("Remove")
    visitor.press("Enter")
    wait_idle(visitor, 2)
    assert visitor.evaluate(focused) == "Write"


# Tells nobody of a paint until the test calls `painted`.
_HIDE_PAINTS = """
window.PerformanceObserver = class {
  constructor(callback) { window.painted = callback; }
  observe({ type }) { window.observed = type; }
};
"""
_SCRIPTS = """
performance.getEntriesByType("resource").map(({ name }) => new URL(name).pathname)
  .filter((path) => path.endsWith(".js"))
"""


def test_the_page_paints_before_it_loads_what_makes_it_work(
    demo: httpx.Client, browser: Browser
) -> None:
    with browser.new_page() as page:
        visitor = Visitor(page, str(demo.base_url).rstrip("/"))
        page.call("Page.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=_HIDE_PAINTS)
        page.call("Page.navigate", url=visitor.url)
        visitor.wait("window.observed === 'paint' && document.readyState === 'complete'")
        assert visitor.evaluate(_SCRIPTS) == []
        assert visitor.evaluate("document.body.ariaBusy") == "true"
        paint = "painted({ getEntriesByName: (name) => (name === '%s' ? [name] : []) })"
        visitor.evaluate(paint % "first-paint")  # of a background, maybe
        assert visitor.evaluate("document.body.ariaBusy") == "true"
        visitor.evaluate(2 * f"{paint % 'first-contentful-paint'};")
        visitor.wait("!document.body.ariaBusy")
        loaded = visitor.evaluate(_SCRIPTS)
        assert "/page/app.js" in loaded
        assert len(loaded) == len(set(loaded))


def test_an_incomplete_page_says_so(visitor: Visitor) -> None:
    visitor.page.call("Network.enable")
    visitor.page.call("Network.setBlockedURLs", urls=["*/page/rest.html"])
    try:
        visitor.page.call("Page.navigate", url=f"{visitor.url}/livez")
        visitor.page.call("Page.navigate", url=f"{visitor.url}/")
        visitor.wait("document.querySelector('#start-problem')?.hidden === false")
        assert visitor.text("#start-problem").endswith("Load it again.")
        assert visitor.evaluate("document.body.ariaBusy") is None
    finally:
        visitor.page.call("Network.setBlockedURLs", urls=[])


def test_the_policy_refuses_markup_and_styles_from_scripts(
    demo: httpx.Client, browser: Browser
) -> None:
    with browser.new_page() as page:
        visitor = Visitor(page, str(demo.base_url).rstrip("/"))
        visitor.open()
        assert visitor.problems() == []
        refused = visitor.evaluate(
            "(() => { try { document.body.innerHTML = '<i>x</i>'; return false; } "
            "catch (error) { return error instanceof TypeError; } })()"
        )
        assert refused
        for inline in (
            "document.body.setAttribute('style', 'color: red')",
            "const style = document.createElement('style'); style.textContent = 'p { color: red }';"
            "document.head.append(style)",
        ):
            page.problems.clear()
            visitor.evaluate(inline)
            assert any("Content Security Policy" in each for each in visitor.problems())
