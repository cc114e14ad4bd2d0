"""The page at `/` in a real browser: how soon it is there, and how soon a keystroke is answered.

    python -m bench.serve.page       # three minutes; needs an idle machine

Needs Chromium (Debian: chromium) and the packages of the tests. The server and the browser share
the machine. A first paint is that of a visit without a cache, in turn with one of a page of one
word: in a browser that has opened pages before, which is what a visitor has, and in one that was
just started. Before a visit, the browser rests on an empty page, so that it does not still close
the last page's process and start a spare one while the visit is timed. No script but the page's own
runs before the paint: it would pay for the start of JavaScript, which a page of a word does not
need. The page works once it has loaded its scripts and asked for the models. A keystroke's
time is from the event of a character until the frame that shows its reply; each is typed when the
last one is drawn. A missed target does not fail the run, but is marked in the table.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import sleep

from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.report.targets import Target
from bench.serve.models import CLASSIFIER, LANGUAGE_MODEL, questions
from bench.serve.one_word import one_word
from bench.serve.processes import StartFailed, sruserve
from tests.browser import Page, opened

_REST_SECONDS = 0.5
# When the page works, to a millisecond, and what it has loaded then or soon after.
_VISITED = """
(async () => {
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const { body } = document;
  const changed = (done) =>
    new MutationObserver(done).observe(body, { attributeFilter: ["aria-busy"] });
  if (body.ariaBusy !== null) await new Promise(changed);
  const ready = performance.now();
  const paints = () => performance.getEntriesByName("first-contentful-paint");
  while (!paints().length) await pause(20);
  await pause(100);
  const own = (entry) => !new URL(entry.name).pathname.match(/^.(v1|metrics|readyz)/);
  const files = [
    ...performance.getEntriesByType("navigation"),
    ...performance.getEntriesByType("resource").filter(own),
  ];
  const bytes = files.reduce((sum, { transferSize }) => sum + transferSize, 0);
  return { paint: paints()[0].startTime, ready, bytes };
})()
"""
# The page says with each reply what was read for it.
_WATCH = """
window.field = document.querySelector("#classify-text");
window.drawn = null;
let typed = null;
field.addEventListener("input", () => (typed = performance.now()), { capture: true });
const look = () => {
  if (typed === null) return;
  const since = typed;
  typed = null;
  // A task after the callbacks of a frame runs when the frame is drawn.
  requestAnimationFrame(() => setTimeout(() => window.drawn(performance.now() - since)));
};
const all = { subtree: true, childList: true, characterData: true, attributes: true };
new MutationObserver(look).observe(document.querySelector("#classify-sent"), all);
"""
_NEXT = "window.next = new Promise((done) => (window.drawn = done)); 0"


class _Visits:
    """What visits of the page and of a page of one word measured, by turns."""

    def __init__(self, url: str, plain: str) -> None:
        self.url, self.plain = url, plain
        self.timings: dict[str, list[dict[str, float]]] = {url: [], plain: []}

    def visit(self, page: Page, address: str) -> None:
        """Open an address anew, and run nothing in it before its paint."""
        page.call("Page.navigate", url="about:blank")
        sleep(_REST_SECONDS)
        page.call("Page.navigate", url=address)
        page.wait_for("Page.lifecycleEvent", name="firstContentfulPaint")
        self.timings[address].append(page.evaluate(_VISITED))

    def add_case(self, report: Report, name: str) -> None:
        """Tell the first paints of both pages, and when the page works."""
        paints = self.samples(self.url, "paint")
        words = self.samples(self.plain, "paint")
        cases = {"first contentful paint": paints, "the same of a page of one word": words}
        report.add_case(name, {**cases, "the page works": self.samples(self.url, "ready")})

    def samples(self, address: str, moment: str) -> Samples:
        """A moment of each visit of an address."""
        return Samples(tuple(each[moment] for each in self.timings[address]), "ms")


def visits(report: Report, page: Page, url: str, plain: str, count: int) -> None:
    """Open the page anew, without what the browser keeps, and measure its size and first paint.

    plain: the address of a page of one word, which is opened in turn with the page.
    """
    _prepare(page)
    first, made = _Visits(url, plain), _Visits(url, plain)
    for turn in range(count + 1):
        report.progress(f"visit {turn} of {count}")
        for address in in_turn([url, plain], turn):
            (made if turn else first).visit(page, address)  # the first start parts of the browser
    made.add_case(report, "a visit")
    paints, words = made.samples(url, "paint"), made.samples(plain, "paint")
    report.check("first paint, median of the visits", paints.median, "ms", Target(maximum=100))
    later = median(paint - word for paint, word in zip(paints.values, words.values, strict=True))
    report.check("its part above a page of one word", later, "ms", Target(maximum=8))
    size = max(each["bytes"] for each in made.timings[url]) / 1000
    report.check("the page with its files, as they travel", size, "kB", Target(maximum=100))


def first_visits(report: Report, url: str, plain: str, count: int) -> None:
    """Open the page, and in turn the page of one word, in browsers that were just started."""
    made = _Visits(url, plain)
    for turn in range(count):
        report.progress(f"browser {turn + 1} of {count}")
        for address in in_turn([url, plain], turn):
            with TemporaryDirectory() as profile, opened("about:blank", Path(profile)) as page:
                _prepare(page)
                made.visit(page, address)
    made.add_case(report, "the first visit of a browser that was just started")


def _prepare(page: Page) -> None:
    """Let a page keep no files, and tell of its paint."""
    page.call("Network.enable")
    page.call("Network.setCacheDisabled", cacheDisabled=True)
    page.call("Page.enable")
    page.call("Page.setLifecycleEventsEnabled", enabled=True)


def keystrokes(report: Report, page: Page, url: str, texts: list[str]) -> None:
    """Type texts into the classifier's field, and measure until each reply is drawn."""
    page.call("Page.navigate", url=url)
    page.wait_for("Page.lifecycleEvent", name="firstContentfulPaint")
    page.evaluate(_VISITED)
    page.evaluate(_WATCH)
    times = []
    for count, text in enumerate(texts, 1):
        report.progress(f"text {count} of {len(texts)}")
        page.evaluate("field.value = ''; field.focus()")
        for character in text:
            page.evaluate(_NEXT)
            page.call("Input.insertText", text=character)
            times.append(float(page.evaluate("window.next")))
    samples = Samples(tuple(times), "ms")
    report.add_case("typing questions", {"keystroke to drawn": samples})
    p99 = samples.quantile(0.99)
    report.check("keystroke to its reply drawn, p99", p99, "ms", Target(maximum=50))


def main() -> int:
    args = _arguments()
    report = Report("page", ("uvicorn", "websockets"), args.quick)
    count, starts, texts = (2, 1, 1) if args.quick else (30, 20, 30)
    try:
        with (
            TemporaryDirectory() as profile,
            one_word() as plain,
            sruserve("sruserve", [CLASSIFIER, LANGUAGE_MODEL]) as server,
            opened("about:blank", Path(profile)) as page,
        ):
            url = f"http://127.0.0.1:{server.port}/"
            visits(report, page, url, plain, count)
            keystrokes(report, page, url, questions()[:texts])
            first_visits(report, url, plain, starts)
            if page.problems:
                print(f"bench.serve.page: {json.dumps(page.problems)}", file=sys.stderr)
                return 1
    except StartFailed as error:
        print(f"bench.serve.page: {error}", file=sys.stderr)
        return 1
    report.finish(args.results)
    return 0


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.serve.page", __doc__)
    parser.add_argument("--quick", action="store_true", help="two visits; nothing is stored")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
