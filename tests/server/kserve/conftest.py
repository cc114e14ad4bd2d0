"""A server that speaks gRPC, too, and clients of it."""

from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton

from sruserve.server.app import Application
from tests.server.conftest import Serve


def grpc_address(application: Application) -> str:
    assert application.grpc is not None
    return f"127.0.0.1:{application.grpc.port}"


@pytest.fixture(scope="session")
def grpc_server(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    names = ("question", "whole", "sensor", "characters", "ids")
    with serve(*names, grpc_port=0, max_body_bytes=1 << 20, model_control=True) as running:
        yield running


@pytest.fixture(scope="session")
def rpc(grpc_server: tuple[httpx.Client, Application]) -> Iterator[Any]:
    """Triton's own client."""
    with triton.InferenceServerClient(grpc_address(grpc_server[1])) as client:
        yield client


@pytest.fixture(scope="session")
def channel(grpc_server: tuple[httpx.Client, Application]) -> Iterator[grpc.Channel]:
    """For messages that no client would send."""
    with grpc.insecure_channel(grpc_address(grpc_server[1])) as channel:
        yield channel
