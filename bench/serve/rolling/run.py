"""Restart each replica in turn under load, and compare every text with an undisturbed one."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.serve.rolling.clients import LANGUAGE_MODEL, PROMPT, Client
from bench.serve.rolling.cluster import Cluster, wait_until
from bench.serve.soak.http_client import Http


@dataclass(frozen=True)
class Outcome:
    """failures: a line for each client that got what no rule allows. exit_codes: of the replicas.

    differing: clients whose text differs from that of an undisturbed server.
    """

    failures: list[str]
    differing: list[str]
    exit_codes: list[int | None]
    requests: dict[str, int]
    continued: dict[str, int]
    characters: int


async def roll(cluster: Cluster, clients: Sequence[Client], rounds: int = 1) -> Outcome:
    """Restart each replica `rounds` times, one after the other, while all clients work."""
    tasks = [asyncio.create_task(client.run()) for client in clients]
    exit_codes = []
    try:
        for replica in cluster.replicas * rounds:
            await _progress(clients, tasks)
            await _writes(clients, replica.name)
            exit_codes.append(await asyncio.to_thread(replica.stop))
            await _progress(clients, tasks)  # without it
            replica.start()
            await _until(cluster.all_up, "HAProxy has found the replica again")
        await _progress(clients, tasks)
    finally:
        for client in clients:
            client.stopped = True
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    return Outcome(
        [_failure(c, e) for c, e in zip(clients, ends, strict=True) if e is not None],
        [_name(c) for c in clients if c.text != await _undisturbed(cluster, c)],
        exit_codes,
        _sums(clients, lambda client: client.done),
        _sums(clients, lambda client: client.continued),
        sum(len(client.text) for client in clients),
    )


async def _progress(clients: Sequence[Client], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until each client that has not failed has had a request answered."""
    before = [client.done for client in clients]

    def progressed() -> bool:
        done = zip(clients, before, tasks, strict=True)
        return all(task.done() or client.done > count for client, count, task in done)

    await _until(progressed, "each client has an answer")


async def _writes(clients: Sequence[Client], name: str) -> None:
    """Wait until a replica is in the middle of a streamed completion."""
    await _until(lambda: any(client.replica == name for client in clients), f"{name} writes")


async def _until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


async def _undisturbed(cluster: Cluster, client: Client) -> str:
    """The text of a client's seed in one request to one replica."""
    if not client.text:
        return ""
    body = {"model": LANGUAGE_MODEL, "prompt": PROMPT, "seed": client.seed}
    async with Http(cluster.replicas[0].port, None) as http:
        reply = await http.ask("/v1/completions", {**body, "max_tokens": len(client.text)})
    text: str = reply["choices"][0]["text"]
    return text


def _sums(clients: Sequence[Client], count: Callable[[Client], int]) -> dict[str, int]:
    """Add up the counts of each kind of client."""
    sums: dict[str, int] = {}
    for client in clients:
        kind = type(client).__name__
        sums[kind] = sums.get(kind, 0) + count(client)
    return sums


def _failure(client: Client, error: BaseException) -> str:
    return f"{_name(client)}: {type(error).__name__}: {error}"  # Triton's has an empty `repr`


def _name(client: Client) -> str:
    return f"{type(client).__name__} {client.seed}"
