"""Server-held streams in a Redis that is reached over TLS."""

from pathlib import Path

from tests.server.conftest import Serve
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, StartRedis
from tests.server.streams.replies import code
from tests.server.tls.authority import Authority


def test_streams_live_in_a_redis_whose_certificate_is_verified(
    serve: Serve, start_redis: StartRedis, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.sign("redis")
    authority.sign("client")
    certificate, key = (str(tmp_path / f"redis.{suffix}") for suffix in ("pem", "key"))
    port, tls_port = free_port(), free_port()
    options = (
        *("--tls-port", str(tls_port), "--tls-ca-cert-file", str(authority.file)),
        *("--tls-cert-file", certificate, "--tls-key-file", key),
    )
    own = f"&ssl_certfile={tmp_path}/client.pem&ssl_keyfile={tmp_path}/client.key"
    address = f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={authority.file}"
    with start_redis(port, options=options):
        with serve("question", state_keys=KEYS, store=address + own) as (client, _):
            opened = client.post("/v1/streams", json={"model": "question"})
            assert opened.status_code == 201, opened.text
            path = f"/v1/streams/{opened.json()['id']}/steps"
            assert client.post(path, json={"step": 1, "input": "how far"}).status_code == 200
        for lacking in (address, f"rediss://127.0.0.1:{tls_port}/0?db=0{own}"):
            with serve("question", state_keys=KEYS, store=lacking) as (client, _):
                refused = client.post("/v1/streams", json={"model": "question"})
                assert (refused.status_code, code(refused)) == (503, "store_unavailable")
