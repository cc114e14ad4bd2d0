"""API keys, and what each tenant may use."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.auth import Spent, Tenant, Tenants
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.errors import (
    DeadlineExceeded,
    EngineFailure,
    InvalidRequest,
    OutOfDeviceMemory,
    Overloaded,
    ServeError,
)
from sruserve.server.http.error_mapping import status_of
from sruserve.server.key_entries import read_keys
from sruserve.server.settings import SettingsError, load_settings
from tests.server.conftest import CHARACTERS, Serve
from tests.server.hand_clock import HandClock
from tests.server.http.json_requests import connect
from tests.server.keys import ACME, OTHER, bearer
from tests.server.observing import until

UNLIMITED_STEPS = json.dumps([{"tenant": "acme", "key": ACME, "steps_per_second": 1_000_000}])
COMPLETE = "/v1/completions"


def spends_of_acme(monkeypatch: pytest.MonkeyPatch) -> list[Spent]:
    """What that tenant has spent from now on; other servers of this process may be spending too."""
    spends: list[Spent] = []
    spend = Tenant.spend

    def noted(tenant: Tenant, limit: int) -> Spent:
        spent = spend(tenant, limit)
        if tenant.name == "acme":
            spends.append(spent)
        return spent

    monkeypatch.setattr(Tenant, "spend", noted)
    return spends


@pytest.fixture(scope="module")
def guarded(serve: Serve) -> Iterator[httpx.Client]:
    keys = f"acme:{ACME},other:{OTHER}"
    with serve("characters", api_keys=keys, state_keys="a" * 64) as (client, _):
        yield client


def test_a_list_without_a_key_does_not_open_the_server(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("[]")
    with pytest.raises(SettingsError, match=r"SRUSERVE_API_KEYS_FILE=.*lists no key"):
        load_settings(api_keys_file=tmp_path / "keys.json")
    with pytest.raises(SettingsError, match=r"SRUSERVE_API_KEYS: .*lists no key"):
        load_settings(api_keys="[]")


@pytest.mark.parametrize("rate", ["1e400", "1e-320", "-1", "0"])
def test_a_rate_is_a_number_to_reckon_with(rate: str) -> None:
    with pytest.raises(ValueError, match=r"steps_per_second|JSON list"):
        read_keys(f'[{{"key": "{ACME}", "steps_per_second": {rate}}}]', None)


def test_keys_are_read_from_regular_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ValueError, match="cannot be read"):
            read_keys(None, file)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        bearer("wrong-key-123"),
        {"authorization": "Bearer"},
        bearer(ACME + "x"),
        {"authorization": ACME},
    ],
)
@pytest.mark.parametrize("path", [COMPLETE, "/v1/models", "/v1/models/characters", "/v1/stream"])
def test_without_a_known_key_nothing_is_served(
    guarded: httpx.Client, path: str, sent: dict[str, str]
) -> None:
    call = guarded.post if path == COMPLETE else guarded.get
    reply = call(path, headers=sent)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/docs", "/"])
def test_probes_metrics_and_documentation_need_no_key(guarded: httpx.Client, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_a_state_belongs_to_the_tenant_that_got_it(guarded: httpx.Client) -> None:
    body = {"prompt": "To be", "max_tokens": 1, "return_state": True}
    mine = guarded.post(COMPLETE, json=body, headers=bearer(ACME)).json()["choices"][0]["state"]
    more = {"prompt": "", "state": mine}
    assert guarded.post(COMPLETE, json=more, headers=bearer(ACME)).status_code == 200
    stolen = guarded.post(COMPLETE, json=more, headers=bearer(OTHER))
    assert stolen.status_code == 403
    assert stolen.json()["error"]["code"] == "state_wrong_tenant"


def test_the_error_of_a_tenant_over_its_requests_says_when_to_retry(serve: Serve) -> None:
    keys = json.dumps(
        [
            {"tenant": "slow", "key": ACME, "requests_per_second": 2},
            {"tenant": "free", "key": OTHER},
        ]
    )
    clock = HandClock()
    with serve("characters", api_keys=keys, clock=clock) as (client, _):
        body = {"prompt": "a", "max_tokens": 0}
        replies = [client.post(COMPLETE, json=body, headers=bearer(ACME)) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[-1].json()["error"]["code"] == "rate_limited"
        assert int(replies[-1].headers["retry-after"]) == 1
        assert client.post(COMPLETE, json=body, headers=bearer(OTHER)).status_code == 200
        clock.now += 1
        assert client.post(COMPLETE, json=body, headers=bearer(ACME)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/characters", "/v2", "/v2/models/stats"])
def test_questions_about_models_count_and_probes_do_not(serve: Serve, path: str) -> None:
    keys = json.dumps([{"key": ACME, "requests_per_second": 0.1}])
    with serve("characters", api_keys=keys, clock=HandClock()) as (client, _):
        for free in ("/livez", "/readyz", "/v2/health/ready", "/v2/models/characters/ready"):
            assert client.get(free, headers=bearer(ACME)).status_code == 200
        assert client.get("/metrics", headers=bearer(ACME)).status_code == 200
        replies = [client.get(path, headers=bearer(ACME)) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 429]
        assert int(replies[-1].headers["retry-after"]) == 10
        assert client.get("/readyz", headers=bearer(ACME)).status_code == 200


def test_steps_count_before_they_are_computed_and_what_is_not_used_is_returned(
    serve: Serve,
) -> None:
    keys = json.dumps([{"key": ACME, "steps_per_second": 100}])
    clock = HandClock()
    with serve("characters", "question", api_keys=keys, clock=clock) as (client, _):
        body = {"model": "characters", "prompt": "a", "max_tokens": 400}
        with ThreadPoolExecutor(8) as pool:
            pending = [
                pool.submit(client.post, COMPLETE, json=body, headers=bearer(ACME))
                for _ in range(8)
            ]
            replies = [each.result() for each in pending]
        codes = [reply.status_code for reply in replies]
        assert codes.count(200) == 1, "several pass the same check"
        refused = [reply for reply in replies if reply.status_code == 429]
        assert len(refused) == 7
        assert max(int(reply.headers["retry-after"]) for reply in refused) <= 5
    with serve("characters", api_keys=keys, clock=clock) as (client, _):
        a = str(CHARACTERS.index(ord("a")))
        body = {"prompt": "a", "max_tokens": 40, "logit_bias": {a: 100}, "stop": "a"}
        for _ in range(5):  # each may take 41, and takes 2
            reply = client.post(COMPLETE, json=body, headers=bearer(ACME))
            assert reply.status_code == 200


def test_who_leaves_while_a_prompt_is_scored_pays_for_it(serve: Serve) -> None:
    keys = json.dumps([{"key": ACME, "steps_per_second": 100}])
    settings: dict[str, Any] = {"api_keys": keys, "clock": HandClock()}
    with serve("characters", max_batch_tokens=1, **settings) as (client, application):
        engine = application.lifecycle.catalogue["characters"].engine
        body = {"prompt": "a" * 80_000, "echo": True, "logprobs": 1, "max_tokens": 0}
        with connect(client, COMPLETE, body, **bearer(ACME)):
            until(lambda: engine.running == 1)
        until(lambda: application.lifecycle.active == 0)
        reply = client.post(COMPLETE, json={"prompt": "a"}, headers=bearer(ACME))
        assert reply.json()["error"]["code"] == "rate_limited"


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_that_is_refused_while_it_waits_counts_nothing(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    spends = spends_of_acme(monkeypatch)

    def refuse(_: Engine, job: Job) -> None:
        job.loop.call_soon(job.done.set_exception, DeadlineExceeded())

    monkeypatch.setattr(Engine, "submit", refuse)
    with serve("characters", api_keys=UNLIMITED_STEPS) as (client, _):
        body = {"prompt": "ab", "max_tokens": 50, "stream": stream}
        assert client.post(COMPLETE, json=body, headers=bearer(ACME)).status_code == 504
    assert [each.used for each in spends] == [0]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        (COMPLETE, {"prompt": "ab", "max_tokens": 50}, None),
        (COMPLETE, {"prompt": "ab", "max_tokens": 50, "stream": True}, 2),
        ("/v1/score", {"input": "abc"}, None),
    ],
    ids=["whole", "stream", "score"],
)
def test_work_that_is_refused_counts_if_a_step_has_included_it(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, object],
    counted: int | None,
    begun: bool,
) -> None:
    spends = spends_of_acme(monkeypatch)

    def refuse(_: Engine, job: Job) -> None:
        job.begun = begun
        job.loop.call_soon(job.done.set_exception, OutOfDeviceMemory())

    monkeypatch.setattr(Engine, "submit", refuse)
    with serve("characters", api_keys=UNLIMITED_STEPS) as (client, _):
        reply = client.post(path, json=body, headers=bearer(ACME))
    assert reply.status_code == status_of(OutOfDeviceMemory)
    assert [each.used for each in spends] == [counted if begun else 0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_that_fails_counts_what_it_may_have_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    spends = spends_of_acme(monkeypatch)

    def fail(_: Engine, job: Job) -> None:
        if stream:
            job.deliver(0, Generated("a", [1, 2, 3]))
        job.loop.call_soon(job.done.set_exception, EngineFailure("so"))

    monkeypatch.setattr(Engine, "submit", fail)
    with serve("characters", api_keys=UNLIMITED_STEPS) as (client, _):
        body = {"prompt": "ab", "max_tokens": 50, "stream": stream}
        client.post(COMPLETE, json=body, headers=bearer(ACME))
    assert [each.used for each in spends] == [2 + 3 if stream else None]


def test_a_completion_whose_prompt_was_scored_has_begun_and_counts_that(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: dict[JobKind, float] = {}
    spends, submit = spends_of_acme(monkeypatch), Engine.submit

    def see(engine: Engine, job: Job) -> None:
        deadlines[job.kind] = job.deadline
        if job.kind is JobKind.GENERATE:
            job.loop.call_soon(job.done.set_exception, Overloaded("so"))
        else:
            submit(engine, job)

    monkeypatch.setattr(Engine, "submit", see)
    body = {"prompt": "a" * 40, "echo": True, "logprobs": 0, "max_tokens": 1}
    with serve("characters", api_keys=UNLIMITED_STEPS) as (client, _):
        reply = client.post(COMPLETE, json={**body, "timeout_ms": 600_000}, headers=bearer(ACME))
    assert reply.status_code == status_of(Overloaded)
    assert [each.used for each in spends] == [40]
    assert deadlines[JobKind.SCORE] > 0
    assert deadlines[JobKind.GENERATE] == 0


@pytest.mark.parametrize(
    ("error", "in_queue", "counted"),
    [
        (Overloaded("so"), False, 0),
        (InvalidRequest("so"), False, 0),
        (DeadlineExceeded(), True, 0),
        (EngineFailure("so"), True, 40),
    ],
    ids=["full queue", "unfit", "late", "failed"],
)
def test_a_prompt_counts_if_it_may_have_been_scored(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    error: ServeError,
    in_queue: bool,
    counted: int,
) -> None:
    spends = spends_of_acme(monkeypatch)

    def refuse(_: Engine, job: Job) -> None:
        if not in_queue:
            raise error
        job.loop.call_soon(job.done.set_exception, error)

    monkeypatch.setattr(Engine, "submit", refuse)
    body = {"prompt": "a" * 40, "echo": True, "logprobs": 0, "max_tokens": 1}
    with serve("characters", api_keys=UNLIMITED_STEPS) as (client, _):
        reply = client.post(COMPLETE, json=body, headers=bearer(ACME))
    assert reply.status_code == status_of(type(error))
    assert [each.used for each in spends] == [counted]


def test_a_model_is_served_to_everybody_as_it_was_loaded_where_there_are_no_keys(
    serve: Serve,
) -> None:
    with serve("question") as (_, application):
        served = application.lifecycle.catalogue["question"]
        assert served.for_tenant(application.lifecycle.tenants.authenticate(None)) is served


def test_work_without_a_key_has_no_owner() -> None:
    assert Tenants().authenticate(None).owner is None
    assert Tenants(read_keys(f"acme:{OTHER}", None)).authenticate(f"bearer {OTHER}").owner == "acme"


def test_limits_that_do_not_count_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    limited = {"tenant": "acme", "key": ACME, "state_bytes": 10}
    last = {"tenant": "acme", "key": OTHER}
    for listed in ([limited, last], [limited, last | {"state_bytes": 10}]):
        Tenants(read_keys(json.dumps(listed), None))
    assert not caplog.messages
    Tenants(read_keys(json.dumps([last, limited]), None))
    (message,) = caplog.messages
    assert "limits of a later key of tenant 'acme' are not used" in message
    assert ACME not in message


@pytest.mark.parametrize(
    "keys",
    [
        "short",
        "a:b:",
        '[{"key": "short"}]',
        "[",
        "[1]",
        f"{ACME},{ACME}",
        '[{"kez": "x"}]',
        '[{"key": "abcdefgh", "priority": -1001}]',
        '[{"key": "abcdefgh", "priority": 1001}]',
        "é" * 9,
        f"a:b:{ACME}",
    ],
)
def test_keys_that_cannot_be_are_refused_without_repeating_them(keys: str) -> None:
    with pytest.raises(SettingsError, match="SRUSERVE_API_KEYS") as refused:
        load_settings(api_keys=keys)
    assert ACME not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("abc", "the key of entry 1 should be 8 to 512 visible ASCII .*; write tenant:key, with"),
        (f"a:{ACME},b:", "the key of entry 2 should be 8 to 512 visible ASCII"),
        ('[{"tenant": "acme"}]', "entry 1 has no 'key'"),
        (f'[{{"key": "{ACME}"}}, 1]', "entry 2 should be an object"),
        ('[{"kez": "x"}]', "entry 1 has the field 'kez', which is unknown; the fields are key"),
        (f'[{{"{ACME}": "acme"}}]', "entry 1 has a field, which is unknown; the fields are key"),
        (f'[{{"{ACME}": 1, "{ACME}": 2}}]', "an entry has a field twice; remove one of them"),
        (f'{{"tenant": "acme", "key": "{ACME}"}}', "should be a JSON list such as"),
        (f'{{"acme": "{ACME}"}}', "should be a JSON list such as"),
        (f'[{{"key": "{ACME}", "priority": 1001}}]', "'priority' of entry 1 should be less than"),
        (
            f'[{{"key": "{ACME}", "priority": 1, "priority": 2}}]',
            "an entry has the field 'priority' twice; remove one of them",
        ),
        (f'[{{"key": "{ACME}", "key": "{OTHER}"}}]', "an entry has the field 'key' twice"),
    ],
)
def test_wrong_keys_are_explained_by_entry_and_field(
    keys: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"SRUSERVE_API_KEYS: {message}") as refused:
        load_settings(api_keys=keys)
    assert ACME not in str(refused.value)
    if keys.startswith(("[", "{")):
        (tmp_path / "keys.json").write_text(keys)
        with pytest.raises(SettingsError, match=f"SRUSERVE_API_KEYS_FILE=.*: {message}"):
            load_settings(api_keys_file=tmp_path / "keys.json")


def test_a_missing_key_file_is_named() -> None:
    with pytest.raises(SettingsError, match="no-such-file"):
        load_settings(api_keys_file="/no-such-file")


def test_ids_of_requests_do_not_tell_a_tenant_how_many_others_made(guarded: httpx.Client) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    replies = [guarded.post(COMPLETE, json=body, headers=bearer(ACME)) for _ in range(20)]
    for ids in (
        [reply.json()["id"].removeprefix("cmpl-") for reply in replies],
        [reply.headers["x-request-id"] for reply in replies],
    ):
        assert len({number[:4] for number in ids}) > 1
        assert len({number[-4:] for number in ids}) > 1
        assert ids != sorted(ids)
