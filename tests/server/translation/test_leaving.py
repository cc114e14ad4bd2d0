"""What a translation has is free again when it ends, its client leaves, or the server stops."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from sruserve.model.translation.folder import TranslationModel
from sruserve.server.engine.scheduling.step_time import StepTime
from sruserve.server.engine.translation.beam_runner import BeamRunner
from sruserve.server.engine.translation.engine import TranslationEngine
from sruserve.server.engine.translation.search import Search
from tests.server.conftest import Serve
from tests.server.http.json_requests import connect
from tests.server.observing import until
from tests.server.translation.asking import ask, sources, stream, text
from tests.server.translation.conftest import Running, engine_of
from tests.server.translation.held_searches import Searches
from tests.server.translation.models import save_random_system

BODY = {"model": "transformer", "input": [text(each) for each in sources(9)], "max_tokens": 30}


def is_free(engine: TranslationEngine) -> bool:
    """Whether nothing is left of any request."""
    memory, runner = engine._memory, engine._runner
    nothing = not (engine._live or engine._open or len(engine._queue) or engine.waiting)
    rows = len(memory._free) == len(memory.rows) == len(set(memory._free.tolist()))
    states = not len(runner._states) and not len(runner._sources)
    return nothing and rows and states and not memory.used and not engine.claims.used


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_withdraws_its_sentences_at_the_next_step(
    running: Running, searches: Searches, streams: bool
) -> None:
    client, application = running
    engine = engine_of(application, "transformer")
    alone = ask(client, "transformer", input="a4 a5 a6", max_tokens=30)
    until(lambda: is_free(engine))
    searches.hold()
    beams = {"stream": True} if streams else {"beam_size": 5}
    connection = connect(client, "/v1/translate", {**BODY, **beams})
    assert searches.waiting.wait(60)
    assert engine._memory.used
    assert engine.claims.used
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(ask, client, "transformer", input="a4 a5 a6", max_tokens=30)
        until(lambda: engine.waiting == 1)
        connection.close()
        until(lambda: all(job.withdrawn for job in engine._open))
        steps = len(searches.widths)
        searches.go_on()
        assert other.result() == alone  # which continues after the step that was running
    assert [len(widths) for widths in searches.widths[steps : steps + 3]] == [9, 1, 1]
    until(lambda: is_free(engine))


def test_sentences_arrive_and_leave_between_two_steps(running: Running, searches: Searches) -> None:
    client, application = running
    searches.hold()
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(ask, client, "transformer", input="a4", max_tokens=30, beam_size=1)
        assert searches.waiting.wait(60)
        short = threads.submit(ask, client, "transformer", input="a7", max_tokens=3, beam_size=2)
        until(lambda: engine_of(application, "transformer").waiting == 1)
        searches.go_on()
        assert long.result()
        assert short.result()
    assert searches.widths[:4] == [[1], [1, 1], [1, 2], [1, 2]]
    assert len(searches.widths) > 4
    assert all(widths == [1] for widths in searches.widths[4:])
    until(lambda: is_free(engine_of(application, "transformer")))


@pytest.fixture
def small(serve: Serve, systems: dict[str, TranslationModel]) -> AbstractContextManager[Running]:
    """A server whose memory holds the beams of about two sentences."""
    path = str(systems["transformer"].path)
    return serve(path, state_pool_bytes=100_000, drain_seconds=60, model_control=True)


def test_beams_beyond_memory_are_refused_and_others_wait_for_it(
    small: AbstractContextManager[Running], searches: Searches
) -> None:
    with small as (client, application):
        engine = engine_of(application, "transformer")
        reply = client.post("/v1/translate", json={"input": "a4 a5", "beam_size": 40})
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
        assert "over the limit of 87500 bytes: lower 'beam_size'" in reply.text
        texts = [text(each) for each in sources(6)]
        results = ask(client, "transformer", input=texts, beam_size=5, max_tokens=30)
        assert results == [
            result
            for each in texts
            for result in ask(client, "transformer", input=each, beam_size=5, max_tokens=30)
        ]
        assert max(len(widths) for widths in searches.widths) < 6
        until(lambda: is_free(engine))


def test_the_scores_of_a_step_are_computed_in_parts_that_change_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    body = {"input": [text(each) for each in sources(6)], "beam_size": 4, "max_tokens": 30}
    expected = ask(client, "transformer", **body)
    runner, sizes = engine_of(application, "transformer")._runner, list[int]()
    forward = runner._forward

    def spy(live: Any, first: int, starts: Any) -> Any:
        sizes.append(sum(sentence.search.hypotheses for sentence in live))
        return forward(live, first, starts)

    monkeypatch.setattr(runner, "_forward", spy)
    monkeypatch.setattr(runner, "_max_hypotheses", 9)
    assert ask(client, "transformer", **body) == expected
    assert 5 <= max(sizes) <= 9
    sizes.clear()
    monkeypatch.setattr(runner, "_max_hypotheses", 1)
    assert ask(client, "transformer", **body) == expected
    assert max(sizes) == 4  # those of one sentence stay together


def test_steps_have_no_more_beams_than_they_have_time_for(
    running: Running, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    body = {"input": [text(each) for each in sources(6)], "beam_size": 5, "max_tokens": 30}
    expected = ask(client, "transformer", **body)
    until(lambda: is_free(engine_of(application, "transformer")))
    learned: list[int] = []
    monkeypatch.setattr(StepTime, "rows", property(lambda _: 12))
    monkeypatch.setattr(StepTime, "learn", lambda _, rows, *more: learned.append(rows))
    searches.widths.clear()
    assert ask(client, "transformer", **body) == expected
    assert max(len(widths) for widths in searches.widths) == 2
    assert learned == [sum(widths) for widths in searches.widths]


def test_slow_steps_still_have_128_beams(
    serve: Serve,
    systems: dict[str, TranslationModel],
    searches: Searches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn = StepTime.learn
    monkeypatch.setattr(StepTime, "learn", lambda self, a, b, _: learn(self, a, b, 9.0))
    body = {"input": [text(each) for each in sources(60)], "beam_size": 5, "max_tokens": 6}
    with serve(str(systems["transformer"].path)) as (client, _):
        ask(client, "transformer", **body)
        searches.widths.clear()
        ask(client, "transformer", **body)
    assert max(map(sum, searches.widths)) == 125


def test_requests_whose_beams_cannot_wait_get_429_until_others_end(
    small: AbstractContextManager[Running], searches: Searches
) -> None:
    body = {"input": ["a4 a5 a6"] * 20, "beam_size": 5, "max_tokens": 30}
    with small as (client, application), ThreadPoolExecutor(4) as threads:
        engine = engine_of(application, "transformer")
        searches.hold()
        accepted = [threads.submit(client.post, "/v1/translate", json=body) for _ in range(4)]
        until(lambda: engine.claims.used == 400_000)
        refused = client.post("/v1/translate", json={"input": "a4"})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert "4 times SRUSERVE_STATE_POOL_BYTES" in refused.text
        searches.go_on()
        assert [each.result().status_code for each in accepted] == [200] * 4
        until(lambda: is_free(engine))
        assert ask(client, "transformer", input="a4")


def test_long_searches_of_one_tenant_keep_no_other_tenant_out(
    serve: Serve, systems: dict[str, TranslationModel], searches: Searches
) -> None:
    path, keys = str(systems["transformer"].path), "a:first-key,b:second-key"
    body = {"input": ["a4 a5 a6"] * 9, "beam_size": 5, "max_tokens": 30}
    with (
        serve(path, state_pool_bytes=100_000, api_keys=keys) as (client, application),
        ThreadPoolExecutor(1) as threads,
    ):
        engine = engine_of(application, "transformer")
        client.headers["authorization"] = "Bearer first-key"
        searches.hold()
        long = threads.submit(client.post, "/v1/translate", json=body)
        assert searches.waiting.wait(60)
        searches.one_step()  # all of the first ones have begun
        assert searches.waiting.wait(60)
        filled, second = len(engine._live), {"authorization": "Bearer second-key"}
        with ThreadPoolExecutor(1) as thread:
            short = {"input": "a7", "max_tokens": 2, "beam_size": 1}
            other = thread.submit(client.post, "/v1/translate", json=short, headers=second)
            until(lambda: engine.waiting > 1)
            searches.go_on()
            assert other.result().status_code == 200
        assert long.result().status_code == 200
        assert [5] * filled + [1] == searches.widths[2]


def test_a_draining_server_finishes_its_translations(
    small: AbstractContextManager[Running], searches: Searches
) -> None:
    with small as (client, application), ThreadPoolExecutor(1) as thread:
        engine = engine_of(application, "transformer")
        expected = ask(client, "transformer", input="a4 a5", max_tokens=20)
        searches.hold()
        running = thread.submit(ask, client, "transformer", input="a4 a5", max_tokens=20)
        assert searches.waiting.wait(60)
        engine.drain(60)
        refused = client.post("/v1/translate", json={"input": "a4"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        searches.go_on()
        assert running.result() == expected
        until(lambda: engine.ended)
        assert is_free(engine)


def test_what_is_not_translated_when_the_drain_ends_is_refused(
    small: AbstractContextManager[Running], searches: Searches
) -> None:
    with small as (client, application), ThreadPoolExecutor(1) as thread:
        engine = engine_of(application, "transformer")
        searches.hold()
        running = thread.submit(client.post, "/v1/translate", json={"input": "a4 a5"})
        assert searches.waiting.wait(60)
        engine.drain(0)
        searches.go_on()
        assert running.result().status_code == 503
        until(lambda: engine.ended)
        assert is_free(engine)


def test_a_model_that_is_unloaded_finishes_its_translations(
    small: AbstractContextManager[Running], searches: Searches
) -> None:
    with small as (client, application), ThreadPoolExecutor(1) as thread:
        engine = engine_of(application, "transformer")
        (expected,) = ask(client, "transformer", input="a4 a5", max_tokens=20, beam_size=1)
        searches.hold()
        running = thread.submit(stream, client, "transformer", input="a4 a5", max_tokens=20)
        assert searches.waiting.wait(60)
        unload = client.post("/v2/repository/models/transformer/unload")
        assert unload.status_code == 200, unload.text
        gone = client.post("/v1/translate", json={"model": "transformer", "input": "a4"})
        assert gone.status_code == 404
        searches.go_on()
        written = "".join(part["text"] for event in running.result() for part in event["results"])
        assert written == expected["text"]
        until(lambda: engine.ended)
        assert is_free(engine)


def test_a_request_that_waits_for_too_long_gets_504(running: Running, searches: Searches) -> None:
    client, application = running
    engine = engine_of(application, "transformer")
    searches.hold()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, client, "transformer", input="a4")
        assert searches.waiting.wait(60)
        body = {"model": "transformer", "input": "a5", "timeout_ms": 1}
        late = threads.submit(client.post, "/v1/translate", json=body)
        until(lambda: engine.waiting == 1)
        submitted = time.monotonic()
        until(lambda: time.monotonic() > submitted + 0.002)  # the deadline is over by then
        searches.go_on()
        assert first.result()
        assert late.result().status_code == 504
        assert late.result().json()["error"]["code"] == "deadline_exceeded"
    until(lambda: is_free(engine))


@pytest.mark.parametrize("part", ["step", "encode"])
def test_a_text_that_fails_ends_its_request_and_no_other_that_is_translated_with_it(
    running: Running, searches: Searches, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    client, application = running
    engine = engine_of(application, "transformer")
    texts = [f"a{4 + i} a5 a6" for i in range(5)]
    expected = [ask(client, "transformer", input=text, max_tokens=20) for text in texts]
    compute, poison = getattr(engine.translator, part), "a7 " * 9

    def fail(*args: Any, **options: Any) -> Any:
        sources = args[0] if part == "encode" else args[3].rows
        if any(len(source) >= 9 for source in sources):
            raise RuntimeError("broken")
        return compute(*args, **options)

    monkeypatch.setattr(engine.translator, part, fail)
    searches.hold()
    with ThreadPoolExecutor(7) as threads:
        body = {"model": "transformer", "max_tokens": 20}
        first = threads.submit(ask, client, "transformer", input="a4", max_tokens=20)
        assert searches.waiting.wait(60)
        others = [
            threads.submit(ask, client, "transformer", input=text, max_tokens=20) for text in texts
        ]
        bad = threads.submit(client.post, "/v1/translate", json={**body, "input": ["a4", poison]})
        until(lambda: engine.waiting == 6)
        searches.go_on()
        assert bad.result().status_code == 500
        assert bad.result().json()["error"]["code"] == "engine_failure"
        assert [each.result() for each in others] == expected
        assert first.result()
    until(lambda: is_free(engine))


@pytest.mark.parametrize("part", ["step", "encode"])
def test_texts_that_fail_alike_in_one_turn_are_one_line_of_the_log(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    client, application = running
    engine = engine_of(application, "transformer")

    def fail(*_: Any, **options: Any) -> Any:
        raise RuntimeError("broken")

    for turn in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(engine.translator, part, fail)
            assert client.post("/v1/translate", json=BODY).status_code == 500
        until(lambda: is_free(engine))
        failures = [record for record in caplog.records if record.exc_info]
        assert len(failures) == turn


def test_a_fault_between_two_steps_ends_what_is_translated_and_the_engine_continues(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    expected = ask(client, "transformer", input="a4 a5 a6", max_tokens=20)
    advance, failures = Search.advance, iter([True])

    def fail(search: Search, *step: Any) -> Any:
        parents = advance(search, *step)
        if next(failures, False):
            raise MemoryError
        return parents

    monkeypatch.setattr(Search, "advance", fail)
    body = {"model": "transformer", "input": "a4 a5 a6", "max_tokens": 20}
    assert client.post("/v1/translate", json=body).json()["error"]["code"] == "engine_failure"
    until(lambda: is_free(engine_of(application, "transformer")))
    assert ask(client, "transformer", input="a4 a5 a6", max_tokens=20) == expected


def test_jobs_that_end_together_leave_in_one_pass(
    running: Running, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    engine = engine_of(application, "transformer")
    passes, keep = [], BeamRunner.keep

    def count(runner: BeamRunner, live: Any, kept: Any) -> None:
        passes.append(len(live))
        keep(runner, live, kept)

    searches.hold()
    body = BODY | {"input": "a4 a5 a6", "max_tokens": 60}
    connections = [connect(client, "/v1/translate", body)]
    assert searches.waiting.wait(60)
    connections += [connect(client, "/v1/translate", body) for _ in range(5)]
    until(lambda: engine.waiting == 5)
    searches.one_step()
    assert searches.waiting.wait(60)
    assert len(engine._live) == 6
    monkeypatch.setattr(BeamRunner, "keep", count)
    for connection in connections:
        connection.close()
    until(lambda: all(job.withdrawn for job in engine._open))
    searches.go_on()
    until(lambda: is_free(engine))
    assert passes == [6]


def test_numbers_that_are_not_finite_are_refused(serve: Serve, tmp_path: Path) -> None:
    path = save_random_system(tmp_path / "huge", end=float("inf")).path
    with serve(str(path)) as (client, application):
        reply = client.post("/v1/translate", json={"input": ["a4", "a5"], "beam_size": 3})
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "not_finite")
        assert "state" not in reply.text
        until(lambda: is_free(engine_of(application, "huge")))


def test_sources_are_encoded_in_steps_of_bounded_tokens(
    serve: Serve, systems: dict[str, TranslationModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    begin = BeamRunner.begin

    def count(runner: BeamRunner, begun: Any) -> None:
        encoded.append(sum(len(sentence.source) for sentence in begun))
        begin(runner, begun)

    monkeypatch.setattr(BeamRunner, "begin", count)
    with serve(str(systems["gru-dot"].path), max_batch_tokens=32) as (client, _):
        results = ask(client, "gru-dot", input=["a4 a5 a6 a7 a8 a9"] * 12, max_tokens=4)
        assert len({result["text"] for result in results}) == 1
        assert sum(encoded) == 12 * 8
        assert max(encoded) <= 32
        reply = client.post("/v1/translate", json={"input": "a4 " * 31})
        assert reply.json()["error"]["code"] == "input_too_long"
        assert "SRUSERVE_MAX_BATCH_TOKENS" in reply.text


def test_a_long_source_does_not_wait_for_the_searches_that_are_running(
    serve: Serve, systems: dict[str, TranslationModel], searches: Searches
) -> None:
    """It is longer than what a step may encode beside searches."""
    with (
        serve(str(systems["gru-dot"].path), max_batch_tokens=32) as (client, application),
        ThreadPoolExecutor(2) as threads,
    ):
        searches.hold()
        long = threads.submit(ask, client, "gru-dot", input="a4", max_tokens=30, beam_size=1)
        assert searches.waiting.wait(60)
        other = threads.submit(ask, client, "gru-dot", input="a4 " * 20, max_tokens=2, beam_size=2)
        until(lambda: engine_of(application, "gru-dot").waiting == 1)
        searches.go_on()
        assert long.result()
        assert other.result()
    assert searches.widths[:3] == [[1], [1, 1], [1, 2]]


def test_a_text_over_the_limit_is_refused_without_advice_to_send_chunks(
    serve: Serve, systems: dict[str, TranslationModel]
) -> None:
    with serve(str(systems["gru-dot"].path), max_input_bytes=40) as (client, _):
        reply = client.post("/v1/translate", json={"input": "a4 " * 31})
        assert reply.json()["error"]["code"] == "input_too_long"
        assert "split it into sentences" in reply.text
        assert "state" not in reply.text
