"""The address of Redis: what cannot be, and passwords that are never shown."""

import logging
from dataclasses import replace

import pytest
import redis

from sruserve.server.settings import SettingsError, load_settings
from tests.server.conftest import Serve
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, StartRedis
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.replies import code


def test_a_wrong_password_is_logged_as_such_and_never_shown(
    serve: Serve, start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    impatient = replace(GENEROUS, reply_seconds=0.5)  # without TLS, no reply comes
    with start_redis(port), redis.Redis(port=port) as client:
        client.config_set("requirepass", "the-right-word")
        for store, message, timing in (
            (f"redis://127.0.0.1:{port}", "password in SRUSERVE_STORE", GENEROUS),
            (f"redis://:a-wrong-word@127.0.0.1:{port}", "password in SRUSERVE_STORE", GENEROUS),
            (f"rediss://:a-wrong-word@127.0.0.1:{port}", "Timeout connecting", impatient),
        ):
            caplog.clear()
            with (
                caplog.at_level(logging.DEBUG),
                serve("characters", state_keys=KEYS, store=store, timing=timing) as (http, _),
            ):
                refused = http.post("/v1/streams", json={})
                assert (refused.status_code, code(refused)) == (503, "store_unavailable")
                pages = [http.get(path).text for path in ("/metrics", "/health", "/v2")]
            assert message in caplog.text
            shown = caplog.text + refused.text + "".join(pages)
            assert "a-wrong-word" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret-word/x@127.0.0.1:6379",
        "redis://:secret-word@127.0.0.1:port",
        "redis://:secret-word@127.0.0.1:99999",
        "redis://:secret-word@127.0.0.1:0",
        "redis://:secret-word@127.0.0.1:\uff16\uff13\uff17\uff19",
        "redis://:secret-word@127.0.0.1/\uff11",
        "redis://:secret-word@127.0.0.1/10000000000",
        "redis://:secret-word@127.0.0.1?db=\uff11",
        "redis://:secret-word@127.0.0.1?db=-1",
        "redis://:secret-word@127.0.0.1/first",
        "redis://:secret-word@127.0.0.1/0?decode_responses=true",
        "redis://:secret-word@127.0.0.1/0?socket_timeout=secret-word",
        "redis://:secret-word@127.0.0.1/0?db=secret-word",
        "redis://:secret-word@127.0.0.1/0?ssl_ca_certs=/ca.pem",
        "rediss://:secret-word@127.0.0.1/0?ssl_bogus=1",
        "rediss://:secret-word@127.0.0.1/0?ssl_cert_reqs=secret-word",
        "redis://:secret-word@[::1",
    ],
)
def test_an_address_that_cannot_be_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="SRUSERVE_STORE: ") as refused:
        load_settings(store=url, state_keys=KEYS)
    assert "secret-word" not in str(refused.value)
