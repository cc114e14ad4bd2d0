"""Limits of a key in time and in states, without a server."""

import json
import math
import random
from contextlib import suppress
from pathlib import Path

import pytest

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import (
    NotFinite,
    Overloaded,
    RateLimited,
    StateQuotaExceeded,
    Unauthorized,
)
from sruserve.server.key_entries import KeyEntry, read_keys
from tests.server.keys import ACME, OTHER

LIMITED = KeyEntry(key=ACME, steps_per_second=10)


def take(tenant: Tenant, steps: int) -> int | None:
    """Use so many steps; or the seconds to wait."""
    try:
        tenant.admit()
        with tenant.spend(steps) as spent:
            spent.used = steps
    except RateLimited as refused:
        return refused.retry_after_seconds
    return None


def test_more_than_a_second_is_let_through_when_nothing_else_was_and_is_paid_with_time() -> None:
    now = 0.0
    tenant = Tenant("a", LIMITED, lambda: now)
    assert take(tenant, 40) is None
    assert take(tenant, 1) == 4  # 30 owed, and then the bucket fills
    now = 2.5
    assert take(tenant, 1) == 2
    now = 3.2
    assert take(tenant, 5) == 1
    assert take(tenant, 2) is None
    assert take(tenant, 40) == 1  # until the bucket is full
    now = 4.3
    assert take(tenant, 40) is None


def test_a_client_that_waits_for_retry_after_is_served() -> None:
    chance, now = random.Random(3), 0.0
    tenant = Tenant("a", LIMITED, lambda: now)
    used = largest = 0
    for _ in range(2000):
        steps = chance.choice([0, 1, 3, 9, 10, 11, 40, 500])
        if (wait := take(tenant, steps)) is not None:
            assert wait <= 1 + math.ceil(largest / 10), "more than the largest request owes"
            now += wait
            assert take(tenant, steps) is None
        used, largest = used + steps, max(largest, steps)
        assert used <= 10 + 10 * now + 500, "more than the rate, a burst and one request"
        now += chance.random() * 0.3


def test_requests_that_run_together_do_not_pass_the_same_check() -> None:
    tenant = Tenant("a", LIMITED, lambda: 0.0)
    with tenant.spend(6):
        with pytest.raises(RateLimited), tenant.spend(6):
            pass
        with tenant.spend(4) as spent:
            spent.used = 4
    with tenant.spend(6) as spent:
        spent.used = None
    assert take(tenant, 1) == 1, "what nobody knows of counts"
    with pytest.raises(RateLimited), tenant.spend(1):
        pass


def test_who_is_refused_at_once_has_used_nothing() -> None:
    tenant = Tenant("a", LIMITED, lambda: 0.0)
    with suppress(Overloaded), tenant.spend(500):
        raise Overloaded
    with suppress(NotFinite), tenant.spend(10) as spent:
        spent.used = None
        raise NotFinite("it was computed")
    assert take(tenant, 1) == 1


def test_as_many_requests_as_a_second_has_are_let_through_at_once() -> None:
    now = 0.0
    entry = KeyEntry(key=ACME, requests_per_second=3)
    tenant = Tenant("a", entry, lambda: now)
    for moment in (0.0, 1.0, 100.0):
        now = moment
        assert [take(tenant, 5) for _ in range(4)] == [None, None, None, 1]


def test_kept_states_count_against_the_quota_until_they_are_released() -> None:
    budget = Tenant("a", KeyEntry(key=ACME, state_bytes=100)).state_budget
    with budget.hold(60), pytest.raises(StateQuotaExceeded, match=r"use 60 of 100 bytes"):
        budget.hold(60)
    with pytest.raises(StateQuotaExceeded):
        budget.hold(101)
    whole = budget.hold(100)
    assert budget.used == 100
    whole.release()
    anybody = Tenants(state_bytes=50).authenticate(None).state_budget
    with anybody.hold(50), pytest.raises(StateQuotaExceeded):
        anybody.hold(1)


def test_keys_of_one_tenant_share_its_states_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([{"tenant": "acme", "key": ACME, "state_bytes": 10}]))
    tenants = Tenants(read_keys(f"acme:{OTHER}", file))
    assert tenants.authenticate(f"bearer {ACME}") is tenants.authenticate(f"Bearer {OTHER}")
    with pytest.raises(Unauthorized):
        tenants.authenticate(None)


def test_a_request_may_ask_for_less_urgency_and_for_more_only_where_its_key_allows_that() -> None:
    plain = Tenant("plain", KeyEntry(key="abcdefgh"))
    urgent = Tenant("urgent", KeyEntry(key="abcdefgi", priority=-10))
    priorities = (-1000, -10, 0, 1000)
    assert [plain.priority(number) for number in priorities] == [0, 0, 0, 1000]
    assert [Tenant().priority(number) for number in priorities] == [0, 0, 0, 1000]
    assert [urgent.priority(number) for number in priorities] == [-10, -10, 0, 1000]
