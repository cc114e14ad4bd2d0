"""How many Python functions a warm step of a stream in Redis calls, as in `test_calls.py`."""

from dataclasses import replace

from tests.server.conftest import Serve
from tests.server.streams.conftest import KEYS
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.test_calls import Calls
from tests.server.warm_requests import held_steps, profiled

_STEP = 768  # today's are 766: see `test_calls.py`


def test_a_step_of_a_stream_in_redis(serve: Serve, redis_port: int) -> None:
    calls = Calls()
    timing = replace(GENEROUS, renew_seconds=3600, memory_seconds=3600)
    store = f"redis://127.0.0.1:{redis_port}/4"
    with profiled(serve, calls.see, state_keys=KEYS, store=store, timing=timing) as client:
        assert calls.of_warm(held_steps(client)) <= _STEP
