"""However many read `/metrics`, the text is made once a second."""

import asyncio
import threading
from types import SimpleNamespace

import httpx
import pytest

from sruserve.server import offload
from sruserve.server.app import Application
from sruserve.server.metrics.page import MetricsPage


class Rendering:
    """Counts how often the text is made; each time waits for `may_end`."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self) -> tuple[bytes, str]:
        assert self.may_end.wait(60)
        self.count += 1
        return b"%d" % self.count, "text/plain"


def test_the_text_is_made_again_when_it_is_a_second_old() -> None:
    now = [100.0]
    make = Rendering()

    async def run() -> list[bytes]:
        page = MetricsPage(make=make, clock=lambda: now[0])
        texts = []
        for now[0] in (100.0, 100.0, 100.9, 101.0, 101.5, 102.1):
            texts.append((await page.read())[0])
        return texts

    assert asyncio.run(run()) == [b"1", b"1", b"1", b"2", b"2", b"3"]


def test_a_text_that_took_long_is_given_out_for_longer() -> None:
    now = [100.0]
    make = Rendering()

    def slowly() -> tuple[bytes, str]:
        now[0] += 0.25 if make.count == 0 else 9
        return make()

    async def run() -> list[bytes]:
        page = MetricsPage(make=slowly, clock=lambda: now[0])
        texts = [(await page.read())[0]]
        for now[0] in (105.2, 105.3, 124.2, 124.4):
            texts.append((await page.read())[0])
        return texts

    assert asyncio.run(run()) == [b"1", b"1", b"2", b"2", b"3"]


def test_all_who_wait_share_one_rendering_even_if_the_first_of_them_leaves() -> None:
    make = Rendering()
    make.may_end.clear()

    async def run() -> set[bytes]:
        page = MetricsPage(make=make)
        first = asyncio.create_task(page.read())
        waiting = [asyncio.create_task(page.read()) for _ in range(100)]
        await asyncio.sleep(0)
        first.cancel()
        make.may_end.set()
        return {text for text, _ in await asyncio.gather(*waiting)}

    assert asyncio.run(run()) == {b"1"}
    assert make.count == 1


def test_a_rendering_that_fails_is_tried_again() -> None:
    class Failing(Rendering):
        def __call__(self) -> tuple[bytes, str]:
            if super().__call__()[0] == b"1":
                raise OSError("no such folder")
            return b"whole", "text/plain"

    async def run() -> bytes:
        page = MetricsPage(make=Failing())
        with pytest.raises(OSError, match="no such folder"):
            await page.read()
        return (await page.read())[0]

    assert asyncio.run(run()) == b"whole"


def test_where_no_thread_can_be_started_it_is_said(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(offload, "threading", SimpleNamespace(Thread=NoThread))
        reply = client.get("/metrics")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_process")
    assert client.get("/metrics").status_code == 200


def test_sixteen_scrapers_of_a_server_cost_one_rendering(
    server: tuple[httpx.Client, Application],
) -> None:
    client, application = server
    page = application.metrics
    made = page._make
    count: list[None] = []

    def counted() -> tuple[bytes, str]:
        count.append(None)
        return made()

    page.seconds, page._make = 3600.0, counted

    def scrape() -> None:
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            for _ in range(5):
                assert "sru_build_info" in own.get("/metrics").text

    try:
        threads = [threading.Thread(target=scrape) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(count) == 1
    finally:
        page.seconds, page._make = 0.0, made
        page._until = 0.0
