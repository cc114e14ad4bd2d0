"""What a reply to a step says."""

import httpx

from tests.server.streams.conftest import Replicas


def code(reply: httpx.Response) -> str:
    return str(reply.json()["error"]["code"])


def text(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def steps_done(replicas: Replicas, outcome: str, model: str = "characters") -> float:
    """How many steps were computed, or repeated, by all servers of this process."""
    page = replicas.ask("GET", "/metrics").text
    sample = f'sru_stream_steps_total{{model="{model}",outcome="{outcome}"}} '
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(sample))
