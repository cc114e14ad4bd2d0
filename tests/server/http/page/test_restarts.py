"""A server that is killed and started again while the page uses it is waited for."""

from signal import SIGKILL, SIGTERM, Signals

import pytest

from tests.server.http.page.conftest import KEYS, MODELS, Visit, Visitor
from tests.server.http.page.test_generating import (
    COMPLETE,
    begin,
    completed,
    link_of,
    texts,
    wait_idle,
    write,
)
from tests.server.ports import free_port
from tests.server.processes import Process, serving

TOKENS = 4000  # many more than come until the server is killed


@pytest.fixture
def settings() -> dict[str, str]:
    """Of a server and of the one that follows it."""
    return {"state_keys": KEYS, "grpc_port": "off", "port": str(free_port())}


def end(process: Process, number: Signals = SIGKILL) -> None:
    process.send_signal(number)
    process.wait(60)


def wait_until_missed(visitor: Visitor) -> None:
    """Wait until the page says that it waits."""
    visitor.wait("!document.querySelector('#away').hidden")
    assert "Waiting for it" in visitor.text("#away")


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM], ids=["killed", "drained"])
def test_a_text_continues_from_its_last_state(
    visit: Visit, settings: dict[str, str], number: Signals
) -> None:
    settings["drain_seconds"] = "0"
    with serving(*MODELS, **settings) as (client, process), visit(str(client.base_url)) as visitor:
        begin(visitor, prompt="ROMEO:", seed=5, max_tokens=TOKENS)
        visitor.wait("document.querySelector('.lane .text').textContent.length > 200")
        end(process, number)
        wait_until_missed(visitor)
        assert len(texts(visitor)[0]) < 6 + TOKENS
        with serving(*MODELS, **settings) as (again, _):
            wait_idle(visitor)
            assert texts(visitor) == [completed(again, "ROMEO:", TOKENS, seed=5)]
            visitor.wait("document.querySelector('#away').hidden")  # while that server runs
        sent = [each["body"] for each in visitor.requests(COMPLETE) if each["status"] == 200]
        assert [bool(body.get("state")) for body in sent] == [False, True]
        assert sent[1]["prompt"] == ""


def test_typed_text_is_read_when_the_server_is_back(visit: Visit, settings: dict[str, str]) -> None:
    with serving(*MODELS, **settings) as (client, process), visit(str(client.base_url)) as visitor:
        visitor.focus("#classify-text")
        visitor.type("Who wro")
        visitor.wait("document.querySelector('#classify-summary').textContent")
        end(process)
        visitor.type("te Hamlet?")
        wait_until_missed(visitor)
        assert visitor.evaluate("document.querySelector('#classify-problem').hidden")
        with serving(*MODELS, **settings):
            visitor.wait("requests.some((one) => one.reply && one.body.input.endsWith('?'))")
        read = [each["body"]["input"] for each in visitor.requests("/v1/classify")]
        assert "".join(read) == "Who wrote Hamlet?"
        visitor.wait("document.querySelector('#classify-summary').textContent.startsWith('human')")


def test_a_text_is_read_anew_by_a_server_with_another_key(
    visit: Visit, settings: dict[str, str]
) -> None:
    problem = "document.querySelector('.lane .problem')"
    with serving(*MODELS, **settings) as (client, process), visit(str(client.base_url)) as visitor:
        visitor.focus("#classify-text")
        visitor.type("Who wro")
        visitor.wait("document.querySelector('#classify-summary').textContent")
        write(visitor, prompt="ROMEO:", seed=5, max_tokens=60)
        (text,) = texts(visitor)
        link = link_of(visitor)
        end(process)
        with serving(*MODELS, **{**settings, "state_keys": "b" * 64}) as (again, _):
            visitor.click(".lane button", "Continue")
            visitor.wait(f"!{problem}.hidden")
            assert visitor.text(".lane .problem") == (
                "This text's state was made by a server with another key, "
                "so its memory cannot be opened here."
            )
            assert texts(visitor) == [text]
            visitor.click(".lane button", "Start again from this text")
            visitor.wait(f"{problem}.hidden")
            wait_idle(visitor)
            assert texts(visitor) == [completed(again, text, 60, seed=5)]
            visitor.click("#tab-classify")
            visitor.focus("#classify-text")
            visitor.type("te Hamlet?")
            summary = "document.querySelector('#classify-summary').textContent"
            visitor.wait("requests.some((one) => one.reply && one.body.input?.endsWith('?'))")
            visitor.wait(f"{summary}.startsWith('human')")
            assert visitor.evaluate("document.querySelector('#classify-problem').hidden")
            visitor.open(f"#{link.partition('#')[2]}")
            visitor.wait(f"!{problem}.hidden")
            assert visitor.text(".lane .problem").startswith("This link was made by a server with")
            visitor.fill(max_tokens=40)
            visitor.click(".lane button", "Start again from this text")
            visitor.wait(f"document.querySelector('.lane .text').textContent.length > {len(text)}")
            wait_idle(visitor)
            assert texts(visitor)[0].startswith(text)
