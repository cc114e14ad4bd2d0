"""Each line gets the answer that a server gives it, in order, whatever its neighbours are."""

import asyncio
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse

from sruserve.api.local_model import LocalModel, make_request
from sruserve.api.local_settings import local_settings
from sruserve.batch import asking
from sruserve.batch import run as running
from sruserve.batch import source as sources
from sruserve.batch.answers import Answer, answer
from sruserve.batch.entries import Entry, EntryReader
from sruserve.batch.errors import InputError
from sruserve.batch.output import Output, StandardOutput
from sruserve.batch.records import Format, Record, Texts, records
from sruserve.batch.source import Source
from sruserve.server.errors import EngineFailure, InvalidRequest, Overloaded
from sruserve.server.offload import offload
from sruserve.server.tasks import reading
from sruserve.server.tasks.requests import ClassifyRequest
from tests.batch.runs import answers, errors, jsonl, run
from tests.readers import save_reader
from tests.server.conftest import TEXT, WORDS, Serve
from tests.server.translation.models import save_random_system

Local = Callable[[str], LocalModel]


def without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def test_every_line_has_the_result_of_a_server_and_its_number(
    local: Local, serve: Serve, tmp_path: Path
) -> None:
    texts = [" ".join(WORDS[1 + i % 9 : 2 + i % 13] or ["who"]) for i in range(700)]
    output = tmp_path / "out"
    run(local("question"), "".join(f"{text}\r\n" for text in texts).encode(), output, "lines")
    with serve("question") as (client, _):
        results = client.post("/v1/classify", json={"input": texts}).json()["results"]
    expected = [{"line": i, **without_nulls(each)} for i, each in enumerate(results, 1)]
    assert answers(output) == expected
    assert errors(output) == []


def test_a_line_of_json_is_a_text_ids_features_or_the_fields_of_a_request(
    local: Local, serve: Serve, tmp_path: Path
) -> None:
    rows, raw = [[0.5] * 8, [1.0] * 8], {"input": TEXT, "raw_scores": True}
    bodies = [
        ("question", TEXT, {"input": TEXT}),
        ("question", [1, 2, 3], {"input": [1, 2, 3]}),
        ("question", {**raw, "id": "x7"}, raw),
        ("sensor", rows, {"features": rows}),
        ("sensor", {"features": rows}, {"features": rows}),
    ]  # fmt: skip
    for number, (name, line, body) in enumerate(bodies):
        output = tmp_path / str(number)
        run(local(name), jsonl(line), output)
        (answer,) = answers(output)
        with serve(name) as (client, _):
            (result,) = client.post("/v1/classify", json=body).json()["results"]
        assert answer.pop("line") == 1
        assert answer.pop("id", None) == ("x7" if isinstance(line, dict) and "id" in line else None)
        assert answer == without_nulls(result)


def test_completions_are_those_of_their_seed_and_may_be_several(
    local: Local, serve: Serve, tmp_path: Path
) -> None:
    lines = [{"prompt": "to be", "seed": 3}, {"prompt": "to be", "n": 2, "max_tokens": 4}, "who"]
    run(local("characters"), jsonl(*lines), tmp_path / "out", options={"seed": 9, "max_tokens": 6})
    first, second, third = answers(tmp_path / "out")
    with serve("characters") as (client, _):

        def texts(**body: Any) -> list[str]:
            reply = client.post("/v1/completions", json=body).json()
            return [choice["text"] for choice in reply["choices"]]

        assert [first["text"]] == texts(prompt="to be", seed=3, max_tokens=6)
        own = [each["text"] for each in second["results"]]
        assert own == texts(prompt="to be", seed=9, n=2, max_tokens=4)
        assert [third["text"]] == texts(prompt="who", seed=9, max_tokens=6)
    assert first["finish_reason"] == "length"


def test_lines_of_openai_s_batches_are_answered_in_their_shape(
    local: Local, serve: Serve, tmp_path: Path
) -> None:
    body = {"model": "characters", "prompt": "to be", "max_tokens": 5, "seed": 1}
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body},
        {"custom_id": "b", "method": "POST", "url": "/v1/score", "body": {"input": ["to", "be"]}},
        {"custom_id": "c", "method": "POST", "url": "/v1/score", "body": {"input": "to be"}},
    ]
    run(local("characters"), jsonl(*lines), tmp_path / "out")
    records = answers(tmp_path / "out")
    assert [each["custom_id"] for each in records] == ["a", "b", "c"]
    assert all(each["error"] is None for each in records)
    assert {each["response"]["status_code"] for each in records} == {200}
    completion = Completion.model_validate(records[0]["response"]["body"])
    with serve("characters") as (client, _):
        reply = client.post("/v1/completions", json=body).json()
        scores = client.post("/v1/score", json={"input": ["to", "be", "to be"]}).json()
    assert completion.choices[0].text == reply["choices"][0]["text"]
    assert records[0]["response"]["body"]["usage"] == reply["usage"]
    bodies = [each["response"]["body"] for each in records[1:]]
    assert [r for own in bodies for r in own["results"]] == scores["results"]
    assert sum(own["usage"]["steps"] for own in bodies) == scores["usage"]["steps"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_of_a_batch_are_those_of_openai_s_client(
    local: Local, serve: Serve, tmp_path: Path, encoding: str
) -> None:
    body = {"input": TEXT, "model": "question", "encoding_format": encoding}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}
    run(local("question"), jsonl(line, line), tmp_path / "out")
    first, second = (each["response"]["body"] for each in answers(tmp_path / "out"))
    assert first == second
    if encoding == "float":
        CreateEmbeddingResponse.model_validate(first)
    with serve("question") as (client, _):
        assert client.post("/v1/embeddings", json=body).json() == first


def test_other_tasks_are_requested_by_name(local: Local, tmp_path: Path) -> None:
    run(local("characters"), b"to be\n", tmp_path / "score", "lines", task="score")
    assert answers(tmp_path / "score")[0]["tokens"] == 4
    run(local("question"), b"who\n", tmp_path / "embed", "lines", task="embed")
    assert len(answers(tmp_path / "embed")[0]["embedding"]) == 24


@given(wrong=st.sets(st.integers(1, 60), max_size=12))
def test_wrong_lines_go_to_a_file_of_their_own_and_change_no_other_answer(
    local: Local, tmp_path_factory: pytest.TempPathFactory, wrong: set[int]
) -> None:
    output = tmp_path_factory.mktemp("run") / "out"
    lines = [{"input": [1000] if i in wrong else [i % 9, 1]} for i in range(1, 61)]
    run(local("question"), jsonl(*lines), output)
    assert [each["line"] for each in errors(output)] == sorted(wrong)
    assert all("1000" in each["reason"] and each["code"] for each in errors(output))
    assert [each["line"] for each in answers(output)] == sorted(set(range(1, 61)) - wrong)
    scores = {each["line"]: each["score"] for each in answers(output)}
    for line, score in scores.items():
        assert score == scores.get(line + 9, score)


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        (b"{", "malformed_body", "not valid JSON"),
        (b'"\\ud800"', "malformed_body", "hex escape"),
        (b"[" * 100_000, "malformed_body", "not valid JSON"),
        (b'"\xff"', "malformed_body", "not valid JSON"),
        (b"7", "invalid_request", "'input' must be a text"),
        (b"null", "invalid_request", "'input' is missing"),
        (b"{}", "invalid_request", "'input' is missing"),
        (b'""', "empty_input", ""),
        (b'{"inptu": "a"}', "invalid_request", "did you mean 'input'"),
        (b'{"input": "who", "model": "other"}', "wrong_task", "this run has question"),
        (b'{"input": [true]}', "invalid_request", "'input' must be"),
        (b'{"input": "who", "state": "abc"}', "", "state"),
    ],
    ids=str,
)
def test_the_error_of_a_wrong_line_says_what_is_wrong(
    local: Local, tmp_path: Path, line: bytes, code: str, reason: str
) -> None:
    run(local("question"), b'"who"\n' + line + b'\n"what"\n', tmp_path / "out")
    assert [each["line"] for each in answers(tmp_path / "out")] == [1, 3]
    (error,) = errors(tmp_path / "out")
    assert error["line"] == 2
    assert code in error["code"]
    assert reason in error["reason"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"prompt": "a", "stream": True}, "invalid_request"),
        # the process that compiles it needs more than this time to start
        ({"prompt": "a", "regex": "[a-z]{7}", "timeout_ms": 1}, "deadline_exceeded"),
    ],
    ids=str,
)
def test_a_line_that_would_stream_or_has_too_little_time_ends_no_run(
    local: Local, tmp_path: Path, line: dict[str, Any], code: str
) -> None:
    others = {"prompt": "a", "max_tokens": 2}
    run(local("characters"), jsonl(others, line, others), tmp_path / "out")
    assert [each["line"] for each in answers(tmp_path / "out")] == [1, 3]
    assert [(each["line"], each["code"]) for each in errors(tmp_path / "out")] == [(2, code)]


def test_a_constraint_ends_no_run_where_the_extra_for_it_is_missing(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local("characters")._constraints, "_installed", False)
    others = {"prompt": "a", "max_tokens": 2}
    run(local("characters"), jsonl(others, {**others, "regex": "a"}, others), tmp_path / "out")
    assert [each["line"] for each in answers(tmp_path / "out")] == [1, 3]
    assert [each["code"] for each in errors(tmp_path / "out")] == ["grammars_need_llguidance"]


def test_no_option_lets_the_lines_stream(local: Local, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="leave 'stream' out"):
        run(local("characters"), b'"a"\n', tmp_path / "out", options={"stream": True})


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"url": "/v1/chat/completions"}, 422, "'url' must be one of /v1/completions"),
        ({"url": None}, 422, "'url' must be one of"),
        ({"method": "GET"}, 422, "'method' must be POST"),
        ({"body": "who"}, 422, "'body' must be a JSON object"),
        ({"body": {"input": "who", "model": "gpt"}}, 422, "this run has question"),
        ({"url": "/v1/completions", "body": {"prompt": "a"}}, 422, "a model for 'classify'"),
        ({"url": "/v1/completions", "body": {"prompt": "a", "stream": True}}, 422, "'stream'"),
    ],
    ids=str,
)
def test_a_wrong_line_of_openai_s_batches_has_their_shape(
    local: Local, tmp_path: Path, change: dict[str, Any], status: int, reason: str
) -> None:
    line = {"custom_id": "a", "url": "/v1/classify", "body": {"input": "who"}, **change}
    run(local("question"), jsonl(line), tmp_path / "out")
    (error,) = errors(tmp_path / "out")
    assert (error["custom_id"], error["response"]["status_code"]) == ("a", status)
    assert reason in error["response"]["body"]["error"]["message"]


def test_csv_is_read_by_its_head_with_quotes_and_lines_in_them(
    local: Local, tmp_path: Path
) -> None:
    table = '\ufeffnumber,text\n1,"who, what"\n2,"where\nwhen"\n\n3\n4,a\n'.encode()
    run(local("question"), table, tmp_path / "out", "csv")
    assert [each["line"] for each in answers(tmp_path / "out")] == [2, 4, 7]
    (error,) = errors(tmp_path / "out")
    assert error["reason"] == "the row has 1 columns; the text is column 2"
    run(local("question"), table, tmp_path / "numbers", "csv", column="number")
    assert len(answers(tmp_path / "numbers")) == 4
    run(local("question"), b"q\nwho\n\xff\n", tmp_path / "only", "csv")
    assert [each["reason"] for each in errors(tmp_path / "only")] == ["the row is not UTF-8"]
    with pytest.raises(InputError, match="no column text or input or prompt, but number, name"):
        run(local("question"), b"number,name\n1,a\n", tmp_path / "none", "csv")


def test_a_field_of_json_objects_may_be_the_text_alone(local: Local, tmp_path: Path) -> None:
    lines = jsonl({"q": "who", "label": "human"}, {"question": "who"})
    run(local("question"), lines, tmp_path / "out", column="q")
    assert len(answers(tmp_path / "out")) == 1
    assert errors(tmp_path / "out")[0]["reason"] == "the line has no field 'q'"


def test_a_line_that_is_too_long_is_wrong_and_never_in_memory(local: Local, tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"max_line_bytes": 100, "part_bytes": 10}
    content = b"who\n" + b"x" * 5000 + b"\nwhat\n" + b"y" * 99 + b"\n" + b"z" * 500
    run(local("question"), content, tmp_path / "out", "lines", **bounds)
    assert [each["line"] for each in answers(tmp_path / "out")] == [1, 3, 4]
    assert [each["line"] for each in errors(tmp_path / "out")] == [2, 5]


def test_rows_of_csv_after_a_line_that_is_too_long_are_answered(
    local: Local, tmp_path: Path
) -> None:
    content = b'text\nwho\n"' + b"x" * 500 + b'"\nwhat\nwhen\n'
    run(local("question"), content, tmp_path / "out", "csv", max_line_bytes=100)
    assert [each["line"] for each in answers(tmp_path / "out")] == [2, 4, 5]
    (error,) = errors(tmp_path / "out")
    assert error["line"] == 3
    assert error["reason"].endswith(": split it into several lines")


def test_a_row_of_csv_that_never_ends_is_wrong_and_never_in_memory(
    local: Local, tmp_path: Path
) -> None:
    few: Any = {"format": "csv", "max_row_parts": 20}
    endless = b'"' + b'\nab","' * 30  # a quoted field ends and begins anew on each line
    run(local("question"), b"text\nwho\n" + endless + b'"\nwhat\n', tmp_path / "out", **few)
    assert answers(tmp_path / "out")[0]["line"] == 2
    reasons = [each["reason"] for each in errors(tmp_path / "out")]
    assert any("or 20 commas and lines" in reason for reason in reasons)
    long = b'"' + b"x\n" * 15 + b'"'
    run(local("question"), b"text\nwho\n" + long, tmp_path / "lines", max_line_bytes=100, **few)
    assert len(answers(tmp_path / "lines")) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"input": [%s[]]}' % (b"[]," * 262_144), "262,144 lists, objects and fields"),
        (b'{"input": [%s0]}' % (b"0," * 4_194_304), "4,194,304 values"),
    ],
    ids=["lists", "values"],
)
def test_a_line_of_millions_of_tiny_parts_is_refused_unread(line: bytes, reason: str) -> None:
    text = jsonl({"input": "[:,{" * 262_145})
    wrong, right = records(Source(io.BytesIO(line + b"\n" + text)), Format.JSONL, "input")
    assert isinstance(wrong, Record)
    assert isinstance(right, Record)
    assert wrong.problem == f"the line has more than {reason}: split it"
    assert right.problem is None


@pytest.mark.parametrize(
    ("task", "text", "max_size", "lines"),
    [
        ("classify", b"to be", None, 1024),
        ("classify", b"to be " * 200, None, 128),
        ("classify", b"to be " * 200, 10_000, 12),
        ("generate", b"to be", None, 128),
    ],
    ids=["short", "long", "large", "completions"],
)
def test_few_lines_are_read_ahead_of_those_that_are_answered(
    local: Local,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    text: bytes,
    max_size: int | None,
    lines: int,
) -> None:
    model = local("question" if task == "classify" else "characters")
    source = Source(io.BytesIO((text + b"\n") * 2000))
    started = asyncio.Event()

    async def blocked(_: object, entries: list[Entry]) -> list[Answer]:
        started.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(asking, "answer", blocked)
    reader = EntryReader(task, model.served.name, {})
    sink = StandardOutput(io.BytesIO(), io.BytesIO())
    lines_of = records(source, Format.LINES, None)
    limits: dict[str, Any] = {} if max_size is None else {"max_size": max_size}
    work = running.Run(model, source, lines_of, reader, sink, {}, **limits)

    async def read() -> None:
        running_task = asyncio.create_task(work())
        await started.wait()
        for _ in range(100):  # turns in which it could read more
            await asyncio.sleep(0)
        running_task.cancel()
        await asyncio.gather(running_task, return_exceptions=True)

    model.loop.run(read())
    assert source.line == lines


def test_more_lines_are_read_together_once_it_is_known_what_a_step_takes(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes = local("question"), list[int]()
    step = model.step_rows

    async def seen(model: LocalModel, entries: Sequence[Entry]) -> list[Answer]:
        assert model.step_rows == model.settings.max_batch_tokens >= step
        sizes.append(len(entries))
        return await answer(model, entries)

    monkeypatch.setattr(asking, "answer", seen)
    run(model, f"{TEXT}\n".encode() * 4000, tmp_path / "out", "lines")
    assert [each["line"] for each in answers(tmp_path / "out")] == [*range(1, 4001)]
    of_one = len(model.with_states.model.codec.encode(TEXT)[0])  # type: ignore[union-attr]
    assert sizes[0] < max(sizes) <= sources.MAX_BLOCK_LINES
    assert max(sizes) * of_one <= step
    assert model.step_rows <= step, "other callers wait for no long step"


def test_a_line_of_text_costs_no_call_of_its_own(local: Local, tmp_path: Path) -> None:
    model, calls = local("question"), list[str]()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    async def profile(function: Callable[[FrameType, str, Any], None] | None) -> None:
        sys.setprofile(function)

    def count(lines: int) -> int:
        calls.clear()
        run(model, f"{TEXT}\n".encode() * lines, tmp_path / f"{lines} {len(calls)}", "lines")
        return len(calls)

    count(100)  # warm
    model.loop.run(profile(see))
    try:
        few, many = count(10), count(110)
    finally:
        model.loop.run(profile(None))
    assert many - few < 100


@pytest.mark.parametrize("waits", [False, True], ids=["files", "pipe"])
def test_only_a_pipe_is_read_and_written_on_a_thread(
    local: Local, tmp_path: Path, waits: bool
) -> None:
    model, path, threads = local("question"), tmp_path / "in", set[str]()
    path.write_bytes(b"who\n" * 300)
    with path.open("rb") as file:
        source = Source(io.BytesIO(path.read_bytes()) if waits else file)
        output = Output(tmp_path / "out")

        def seen(lines: Iterator[Record | Texts]) -> Iterator[Record | Texts]:
            for each in lines:
                threads.add(threading.current_thread().name)
                yield each

        lines = seen(records(source, Format.LINES, None))
        reader = EntryReader("classify", model.served.name, {})
        model.loop.run(running.Run(model, source, lines, reader, output, {})())
        output.close()
    assert len(answers(tmp_path / "out")) == 300
    assert ("sruserve" in threads) != waits


def test_short_lines_are_tokenized_without_a_thread(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, costs = local("question"), list[int]()

    async def counted(*arguments: Any, **options: Any) -> Any:
        costs.append(options["cost"])
        return await offload(*arguments, **options)

    monkeypatch.setattr(reading, "offload", counted)
    run(model, f"{TEXT}\n".encode() * 300, tmp_path / "out", "lines")
    assert not costs
    request = make_request(ClassifyRequest, input=[TEXT] * 128)
    model.loop.run(model.answer(request))  # other callers may wait for the loop
    assert costs


def test_a_failure_of_the_model_ends_the_run_and_no_line(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def failing(model: LocalModel, entries: list[Entry]) -> list[Answer]:
        calls.append(entries)
        if len(calls) == 2:
            raise EngineFailure("the engine is broken")
        return await answer(model, entries)

    content = b"".join(b"who\n" for _ in range(1000))
    monkeypatch.setattr(asking, "answer", failing)
    with pytest.raises(EngineFailure):
        run(local("question"), content, tmp_path / "out", "lines")
    assert [each["line"] for each in answers(tmp_path / "out")] == list(range(1, 129))
    run(local("question"), content, tmp_path / "out", "lines")
    assert [each["line"] for each in answers(tmp_path / "out")] == list(range(1, 1001))


class Terminal(io.BytesIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("wrong", [False, True], ids=["answer", "error"])
def test_a_terminal_gets_no_characters_that_it_obeys(wrong: bool) -> None:
    value = {"id": "\x9b31m\x1b[2J \u202e \U000e0001 \x7f é 日", "line": 1}
    line = json.dumps(value, ensure_ascii=False).encode() + b"\n"
    terminal, pipe = Terminal(), io.BytesIO()
    for stream in (terminal, pipe):
        other = io.BytesIO()
        outputs = (other, stream) if wrong else (stream, other)
        StandardOutput(*outputs).write([Answer(1, line, wrong)])
        assert other.getvalue() == b""
    assert pipe.getvalue() == line
    shown = terminal.getvalue().decode()
    assert shown.removesuffix("\n").isprintable()
    assert "é 日" in shown
    assert json.loads(shown) == value


def test_lines_of_questions_get_what_a_server_gives_each(
    local: Local, serve: Serve, tmp_path: Path
) -> None:
    folder = save_reader(tmp_path / "reader")
    bodies: list[dict[str, Any]] = [
        {"question": "Where does Ada live?", "context": "Ada lives in Lisbon."},
        {"question": "Who?", "context": "Ben lives in Porto."},
        {"question": [["Who", "?"]], "context": [["Ada", "Ben"]], "n_best": 2},
        {"question": ["Who?", "Where?"], "context": "Ada lives in Porto."},
    ]
    wrong = {"question": "Who?", "context": " "}
    output = tmp_path / "out"
    run(local(str(folder)), jsonl(*bodies, wrong), output)
    with serve(model_folders=(folder,)) as (client, _):
        replies = [client.post("/v1/answer", json=body).json()["results"] for body in bodies]
    expected = [each[0] if len(each) == 1 else {"results": each} for each in replies]
    assert answers(output) == [{"line": i, **each} for i, each in enumerate(expected, 1)]
    assert [(each["line"], each["code"]) for each in errors(output)] == [(5, "empty_input")]


def test_lines_whose_translations_have_no_memory_beside_others_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_random_system(tmp_path / "system").path
    lines = [{"input": ["a4 a5 a6"] * 20, "max_tokens": 4} for _ in range(16)]
    # each line claims all of this, and four times as much may be claimed
    monkeypatch.setenv("SRUSERVE_STATE_POOL_BYTES", "30000")
    model = LocalModel.load(local_settings(folder, device="cpu"))
    try:
        run(model, jsonl(*lines), tmp_path / "out")
    finally:
        model.loop.run(model.stop())
    records = answers(tmp_path / "out")
    assert len(records) == 16
    assert all(each["results"] == records[0]["results"] for each in records)


def test_a_line_that_is_refused_alone_ends_the_run_and_leaves_no_group_waiting(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> list[Answer]:
        await asyncio.sleep(0)
        raise Overloaded("full")

    monkeypatch.setattr(asking, "answer", refuse)
    with pytest.raises(Overloaded, match="full"):
        run(local("question"), b"who\n" * 1000, tmp_path / "out", "lines")
