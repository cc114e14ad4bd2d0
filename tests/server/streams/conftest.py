"""A real Redis, and servers that hold streams: one in its memory, two in that Redis."""

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from sruserve.server.app import Application
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.settings import load_settings
from sruserve.server.streams.opening import create_streams
from sruserve.server.streams.service import Streams
from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.observing import until
from tests.server.ports import free_port
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.work import Run

KEYS = "a" * 64
ACME, OTHER = "acme-key-123", "other-key-123"
MODELS = ("characters", "question", "sensor", "whole")
TASKS = ("tagger", "small")

StartRedis = Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]


@pytest.fixture(scope="session")
def start_redis(tmp_path_factory: pytest.TempPathFactory) -> StartRedis:
    """`with start_redis(port)`: Debian's redis-server, which writes nothing.

    keeps: a folder, where it writes every change before it answers.
    options: further ones of the program.
    """
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")

    @contextmanager
    def run(
        port: int, keeps: Path | None = None, options: Sequence[str] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        folder = keeps or tmp_path_factory.mktemp("redis")
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        command += ["--save", "", "--appendonly", "yes" if keeps else "no"]
        command += ["--appendfsync", "always", "--logfile", str(folder / "log"), *options]
        process = subprocess.Popen(command)
        try:
            with redis.Redis(port=port) as client:
                until(lambda: answers(client))
            yield process
        finally:
            process.kill()
            process.wait()

    return run


@contextmanager
def wait_briefly(replicas: "Replicas") -> Iterator[None]:
    """Let the servers wait a second for a Redis that stands still."""
    stores: list[Any] = [application.streams._store for application in replicas.applications]
    before = [store._client._seconds for store in stores]
    for store in stores:
        store._client._seconds = 1
    try:
        yield
    finally:
        for store, seconds in zip(stores, before, strict=True):
            store._client._seconds = seconds


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture(scope="session")
def redis_port(start_redis: StartRedis) -> Iterator[int]:
    port = free_port()
    with start_redis(port):
        yield port


@pytest.fixture(scope="session")
def stream_folders(folders: Path, task_folders: Path) -> tuple[Path, ...]:
    return (*(folders / name for name in MODELS), *(task_folders / name for name in TASKS))


# All that is in Redis ends sooner by so many milliseconds.
_SOONER = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
  if redis.call('TYPE', key).ok == 'zset' then
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      redis.call('ZINCRBY', key, -ARGV[1], name)
    end
  end
end
"""


class Replicas:
    """Servers that take turns, as behind a balancer that knows nothing of streams.

    clock: of a server whose streams are in its memory.
    """

    def __init__(
        self,
        running: list[tuple[httpx.Client, Application]],
        kind: str,
        clock: HandClock | None = None,
    ) -> None:
        self.clock = clock
        self.clients = [client for client, _ in running]
        self.applications = [application for _, application in running]
        self.kind = kind
        self._next = cycle(self.clients)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return next(self._next).request(method, path, **options)

    def create(self, model: str = "characters", **body: Any) -> str:
        reply = self.ask("POST", "/v1/streams", json={"model": model, **body})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def step(self, stream: str, number: int, /, **body: Any) -> httpx.Response:
        return self.ask("POST", f"/v1/streams/{stream}/steps", json={"step": number, **body})

    def post(self, stream: str, action: str, /, **body: Any) -> httpx.Response:
        return self.ask("POST", f"/v1/streams/{stream}/{action}", json=body)

    def get(self, stream: str, part: str = "") -> httpx.Response:
        return self.ask("GET", f"/v1/streams/{stream}{part}")

    def delete(self, stream: str) -> httpx.Response:
        return self.ask("DELETE", f"/v1/streams/{stream}")

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass for all streams at once."""
        if self.kind == "memory":
            assert self.clock is not None
            self.clock.now += seconds
            return
        store = self.applications[0].settings.store
        assert store is not None
        with redis.Redis.from_url(store.get_secret_value()) as client:
            client.eval(_SOONER, 0, str(int(1000 * seconds)))

    @property
    def rows(self) -> int:
        """State rows in use, of all models on all servers."""
        catalogues = [app.lifecycle.catalogue for app in self.applications]
        return sum(each.with_states(name).engine.rows for each in catalogues for name in each)


@pytest.fixture(scope="session", params=["memory", "redis"])
def replicas(
    request: pytest.FixtureRequest, serve: Serve, stream_folders: tuple[Path, ...]
) -> Iterator[Replicas]:
    """One server that holds streams in its memory, or two that share a Redis."""
    clock = HandClock()
    settings: dict[str, Any] = {"model_folders": stream_folders, "state_keys": KEYS, "clock": clock}
    count = 1
    if request.param == "redis":
        port, count = request.getfixturevalue("redis_port"), 2
        settings["store"] = f"redis://127.0.0.1:{port}/0"
    with ExitStack() as stack:
        running = [stack.enter_context(serve(**settings)) for _ in range(count)]
        yield Replicas(running, request.param, clock)


@pytest.fixture(scope="module", params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a server that holds streams in its memory, or in Redis."""
    if request.param == "memory":
        return {}
    port = request.getfixturevalue("redis_port")
    return {"state_keys": KEYS, "store": f"redis://127.0.0.1:{port}/3"}


OwnRedis = tuple[Replicas, Any, int]


def key_of(stream: str, what: str = "stream") -> str:
    """Where Redis has a stream of the one tenant, or its lease."""
    return f"sruserve:{what}:{'0' * 32}:{stream}"


@pytest.fixture
def own_redis(start_redis: StartRedis, serve: Serve) -> Iterator[OwnRedis]:
    """Two servers on a Redis that the test may do anything to."""
    port = free_port()
    with start_redis(port) as program:
        settings: dict[str, Any] = {"state_keys": KEYS, "store": f"redis://127.0.0.1:{port}"}
        with serve("characters", **settings) as one, serve("characters", **settings) as two:
            yield Replicas([one, two], "redis"), program, port


Test = Callable[[Streams, Catalogue], Awaitable[None]]


@pytest.fixture(params=["memory", "redis"])
def run(request: pytest.FixtureRequest, folders: Path) -> Run:
    """`run(test)`: call it with streams and models, on an event loop of its own.

    models: the folders; by default two that generate characters. options: of `create_streams`.
    """
    store = None
    if request.param == "redis":
        store = f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/6"

    several = (folders / "characters", folders / "other")

    async def serve(test: Test, models: tuple[Path, ...], **options: Any) -> None:
        settings = load_settings(
            model_folders=models, state_pool_bytes=1 << 20, store=store, state_keys=KEYS
        )
        lifecycle = Lifecycle(settings)
        streams = create_streams(settings, lifecycle.tenants, **{"timing": GENEROUS} | options)
        await lifecycle.start()
        await streams.start()
        try:
            await test(streams, lifecycle.catalogue)
        finally:
            await lifecycle.stop()
            await streams.stop()

    def in_thread(test: Test, models: tuple[Path, ...] = several, **options: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, serve(test, models, **options)).result()

    return in_thread
