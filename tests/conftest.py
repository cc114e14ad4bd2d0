"""Fixtures and hooks of all tests."""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.collecting import first_alone

# Servers of different tests run at the same time; those of gRPC's tests take free ports.
os.environ.setdefault("SRUSERVE_GRPC_PORT", "off")
# Most tests of a server's output read it as a person does.
os.environ.setdefault("SRUSERVE_LOG_FORMAT", "text")

# A shell's background jobs ignore Ctrl-C, and those of `nohup` SIGHUP; so would each server that a
# test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Whole files go to the processes in turn; the others would wait for a long one that began last.
LONG = (
    *("test_running.py", "test_releases.py", "test_prometheus.py"),
    *("test_document.py", "test_onnx_docs.py", "test_package.py", "test_openapi.py"),
    *("test_process.py", "test_cache.py", "test_keras_files.py"),
    *("test_monitoring.py", "test_ray_serve.py", "test_notebooks.py", "test_resume.py"),
    *("test_rolling_restart.py", "test_restarts.py", "test_workers.py", "test_onnx_page.py"),
)

# A shared machine makes no promise on time; fixtures of a module are safe to use again.
settings.register_profile(
    "sruserve",
    deadline=None,
    max_examples=50,
    derandomize=not os.environ.get("EXPLORE"),  # the same cases on every machine
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("sruserve")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest, the longest first."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector from what lives as long as the process: torch, and all tests."""
    gc.disable()
    try:
        with first_alone(session.config):
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Keep the garbage collector from what a file of tests leaves, too.

    Otherwise a collection would take half a second of a core after thousands of tests.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where every system package has to be there, a test that misses one fails."""
    report = yield
    if report.skipped and os.environ.get("REQUIRE_SYSTEM_PACKAGES"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be: {report.longrepr}"
    return report
