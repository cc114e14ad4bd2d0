"""A tenant that takes all it can get takes nothing from another."""

import pytest

from tests.server.conftest import Serve
from tests.server.streams.conftest import ACME, KEYS, OTHER
from tests.server.streams.replies import code
from tests.server.streams.tenants import STEP, TWO, Client, goes_on


@pytest.mark.parametrize(
    "bounds",
    [
        {"stream_bytes": 400_000},
        {"state_pool_bytes": 192 * 200, "state_host_bytes": 0},
        {"state_pool_bytes": 192 * 20, "state_host_bytes": 192 * 180},
        {"tenant_stream_bytes": 200_000},
    ],
    ids=lambda bounds: next(iter(bounds)),
)
def test_a_tenant_that_takes_all_it_can_get_leaves_others_theirs(
    serve: Serve, bounds: dict[str, int]
) -> None:
    with serve("characters", api_keys=TWO, state_keys=KEYS, **bounds) as (http, _):
        greedy, other = Client(http, ACME), Client(http, OTHER)
        stream = other.create()
        other.steps(stream, 1, 1)
        if "state_pool_bytes" not in bounds:
            assert greedy.greed()[0] in ("overloaded", "state_quota_exceeded")
        else:  # forks share a state, so streams of their own fill the room
            replies = [greedy.post(f"/{greedy.create()}/steps", step=1, **STEP) for _ in range(200)]
            assert replies[0].status_code == 200
            assert {code(each) for each in replies if each.is_error} == {"overloaded"}
        goes_on(other, stream, 1)


@pytest.mark.parametrize(
    ("bounds", "full"),
    [
        ({"tenant_stream_bytes": 200_000}, "state_quota_exceeded"),
        ({"stream_bytes": 100_000}, "overloaded"),
    ],
    ids=["the tenant's", "the server's"],
)
def test_a_refusal_names_the_limit_that_is_reached(
    serve: Serve, bounds: dict[str, int], full: str
) -> None:
    with serve("characters", api_keys=TWO, state_keys=KEYS, **bounds) as (http, _):
        greedy = Client(http, ACME)
        while (reply := greedy.post("")).status_code == 201:
            pass
        assert code(reply) == full
