"""The application under a real Ray Serve: two replicas, one of which is killed."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest
import yaml
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bench.serve.processes import free_port
from sruserve.model.bundled import BUNDLED
from sruserve.server.settings import SettingsError, load_settings, variable_name
from tests.server.observing import until
from tests.server.processes import serving
from tests.server.tls.authority import Authority

# Those of Ray's own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

CONFIG = Path(__file__).parents[2] / "deploy/ray/serve.yaml"
KEYS = "c" * 64
MODELS = (BUNDLED / "shakespeare", BUNDLED / "question-type")
_STREAMS, _TOKENS, _INTERVAL = 50, 160, 20
_MEBIBYTES = 1 << 20
# Ray on this machine alone: no usage reports, and no address but the loopback interface's.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # Its proxy is replaced if it is not ready after 5 seconds, which a busy machine may need.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "SRUSERVE_STATE_KEYS": KEYS,
    "SRUSERVE_LOG_LEVEL": "info",
    "SRUSERVE_LOG_FORMAT": "json",
    "SRUSERVE_ACCESS_LOG": "true",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Ray's proxy before two replicas, which have the options of the file but for their CPUs."""
    folder = tmp_path_factory.mktemp("ray")
    token = folder / "token"
    token.write_text("d" * 64)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in {**ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": str(token)}.items():
            patch.setenv(name, value)
        import ray
        from ray import serve

        from sruserve.server.ray_serve import Replica

        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * _MEBIBYTES,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(CONFIG.parents[2])}},
        )
        stack.callback(ray.shutdown)
        assert ray.util.get_node_ip_address() == "127.0.0.1"
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        stack.callback(serve.shutdown)
        options = deployment_options()
        options["ray_actor_options"]["num_cpus"] = 0.5
        serve.run(cast(Any, Replica).options(**options).bind(), name="sruserve", route_prefix="/")
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[httpx.Client]:
    """The server as its own command starts it."""
    logs = {"log_level": "info", "log_format": "text", "access_log": "false"}
    with serving(*MODELS, state_keys=KEYS, threads="1", **logs) as (client, _):
        yield client


def deployment_options() -> dict[str, Any]:
    (application,) = yaml.safe_load(CONFIG.read_text())["applications"]
    (options,) = application["deployments"]
    return {name: value for name, value in options.items() if name != "name"}


def replicas() -> list[psutil.Process]:
    """The processes of the replicas, which are descendants of this one."""
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "ServeReplica" in "".join(each.cmdline())]


class Stream:
    """A text by streamed completions, which goes on from the last state when it breaks."""

    def __init__(self, seed: int) -> None:
        self.seed, self.text, self.breaks = seed, "", 0
        self.state: str | None = None

    async def run(self, client: httpx.AsyncClient, address: str) -> None:
        while len(self.text) < _TOKENS:
            try:
                await self._read(client, address)
            except httpx.HTTPError:
                self.breaks += 1
            self.text = self.text[: self._stored]

    _stored = 0  # characters up to the last state

    async def _read(self, client: httpx.AsyncClient, address: str) -> None:
        body: dict[str, Any] = {"model": "shakespeare", "max_tokens": _TOKENS - len(self.text)}
        body |= {
            "stream": True,
            "return_state": True,
            "stream_options": {"state_interval": _INTERVAL},
        }
        if self.state is None:
            body |= {"prompt": "ROMEO:", "seed": self.seed}
        else:
            body |= {"prompt": "", "state": self.state}
        async with client.stream("POST", f"http://{address}/v1/completions", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line[6:])["choices"]
                    self.text += choice["text"]
                    if choice.get("state"):
                        self.state, self._stored = choice["state"], len(self.text)


async def complete_all(address: str) -> list[Stream]:
    """Fifty streams at once. When the first one has a state, a replica is killed."""
    streams = [Stream(seed) for seed in range(_STREAMS)]
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
        tasks = [asyncio.create_task(stream.run(client, address)) for stream in streams]
        await asyncio.to_thread(until, lambda: any(stream.state for stream in streams), 120)
        replicas()[0].kill()
        await asyncio.gather(*tasks)
    return streams


def test_replicas_answer_as_the_server_does(address: str, undisturbed: httpx.Client) -> None:
    """Ray calls the plain application, without the server's own protocols."""
    question = {"model": "question-type", "input": "How far is it ?"}
    text = {"model": "shakespeare", "prompt": "ROMEO:", "seed": 3, "max_tokens": 40}
    with httpx.Client(base_url=f"http://{address}", timeout=60) as client:
        for path, body in (("/v1/classify", question), ("/v1/completions", text)):
            replies = [each.post(path, json=body).json() for each in (client, undisturbed)]
            assert results(replies[0]) == results(replies[1])
        events = [
            each.post("/v1/completions", json={**text, "stream": True})
            for each in (client, undisturbed)
        ]
        assert {each.headers["content-type"] for each in events} == {
            "text/event-stream; charset=utf-8"
        }
        assert text_of(events[0].text) == text_of(events[1].text)
        assert all(each.text.endswith("data: [DONE]\n\n") for each in events)
        refused = [each.post("/v1/classify", json={"input": 3}) for each in (client, undisturbed)]
        assert refused[0].json() == refused[1].json()
        assert refused[0].status_code == refused[1].status_code == 422
        # Streams in the memory of one replica would be unknown to the other one.
        held = client.post("/v1/streams", json={"model": "shakespeare"})
        assert (held.status_code, held.json()["error"]["code"]) == (501, "streams_need_redis")
    own = undisturbed.base_url.netloc.decode()
    assert converse(address) == converse(own)


def test_a_replica_logs_as_its_settings_say(address: str) -> None:
    """Ray gives each process files for its standard streams, and writes lines there too."""
    lines = [json.loads(line) for each in replicas() for line in lines_of(each, 2)]
    assert any(line["level"] == "info" for line in lines)
    assert httpx.get(f"http://{address}/v1/models").status_code == 200
    until(lambda: any('"/v1/models"' in line for each in replicas() for line in lines_of(each, 1)))


def lines_of(process: psutil.Process, descriptor: int) -> list[str]:
    """The server's lines in a standard stream of a replica."""
    text = Path(f"/proc/{process.pid}/fd/{descriptor}").resolve().read_text()
    return [line for line in text.splitlines() if '"logger":"sruserve' in line]


def results(reply: dict[str, Any]) -> Any:
    return reply.get("results") or [choice["text"] for choice in reply["choices"]]


def text_of(events: str) -> str:
    lines = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(each["choices"][0]["text"] for each in lines if each["choices"])


def converse(address: str) -> list[Any]:
    """The answers over a WebSocket, and the code of its close."""
    frames: list[dict[str, Any]] = [
        {"model": "question-type", "input": "How far is it ", "more": True},
        {"input": "from Denver to Aspen ?", "more": False},
        {"input": 3},
        {"op": "close"},
    ]
    with connect(f"ws://{address}/v1/stream") as socket:
        answers = []
        for frame in frames:
            socket.send(json.dumps(frame))
            answer = json.loads(socket.recv())
            answers.append({name: value for name, value in answer.items() if name != "state"})
        assert answer["state"]
        with pytest.raises(ConnectionClosed):
            socket.recv()
    return [*answers, socket.close_code]


def test_a_killed_replica_loses_nothing_of_fifty_streams(
    address: str, undisturbed: httpx.Client
) -> None:
    streams = asyncio.run(complete_all(address))
    broken = [stream for stream in streams if stream.breaks]
    assert broken, "the killed replica had no stream"
    for stream in streams:
        body = {"model": "shakespeare", "prompt": "ROMEO:", "seed": stream.seed}
        reply = undisturbed.post("/v1/completions", json={**body, "max_tokens": _TOKENS})
        assert stream.text == reply.json()["choices"][0]["text"], stream.seed


def test_the_file_is_one_that_serve_deploys() -> None:
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text()))


def test_replicas_have_settings_with_which_they_can_stand_in_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sruserve.server.ray_serve import replica_settings

    monkeypatch.delenv("SRUSERVE_STATE_KEYS", raising=False)
    settings = replica_settings(load_settings(state_keys=KEYS), 2.0)
    assert (settings.threads, settings.grpc_port) == (2, None)
    assert replica_settings(load_settings(state_keys=KEYS, threads=5), 0.5).threads == 5
    with pytest.raises(SettingsError, match="SRUSERVE_STATE_KEYS"):
        replica_settings(load_settings(), 2.0)
    with pytest.raises(SettingsError, match="SRUSERVE_MODEL_CONTROL"):
        replica_settings(load_settings(state_keys=KEYS, model_control=True), 2.0)


def test_a_replica_whose_tls_would_be_ignored_does_not_start(tmp_path: Path) -> None:
    from sruserve.server.ray_serve import replica_settings

    authority = Authority(tmp_path)
    authority.sign()
    encrypted = authority.settings()
    certified = encrypted | {"tls_client_ca": str(authority.file)}
    for tls in (encrypted, certified):
        settings = load_settings(state_keys=KEYS, **tls)
        with pytest.raises(SettingsError) as refused:
            replica_settings(settings, 2.0)
        assert [name for name in certified if variable_name(name) in str(refused.value)] == [*tls]
