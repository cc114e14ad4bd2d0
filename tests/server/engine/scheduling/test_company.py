"""Whether another tenant may wait for the end of a step."""

from sruserve.server.engine.scheduling.company import Company


def test_a_tenant_expects_nobody_where_it_alone_sends() -> None:
    company = Company()
    for now in (0.0, 0.5, 2.0, 2.1):
        company.note("a", now)
        assert not company.expects({"a"}, now)


def test_a_tenant_expects_another_one_for_a_second_after_its_request() -> None:
    company = Company()
    company.note("long", 100.0)
    company.note("short", 105.0)
    assert company.expects({"long"}, 105.9)
    assert not company.expects({"long"}, 106.1)
    company.note("short", 110.0)
    company.note("long", 110.5)  # the newest request is its own
    assert company.expects({"long"}, 110.9)
    assert not company.expects({"long"}, 111.1)
    assert company.expects({"short"}, 111.1)


def test_several_tenants_expect_each_other() -> None:
    assert Company().expects({"a", "b"}, 1000.0)


def test_requests_without_a_key_are_those_of_one_tenant() -> None:
    company = Company()
    company.note(None, 1.0)
    company.note(None, 1.1)
    assert not company.expects({None}, 1.2)
