"""What the code relies on in libraries beyond their documentation.

A release that lacks one of these fails here, with what relies on it, instead of in production.
"""

import dis
import re
from importlib.metadata import packages_distributions, version
from pkgutil import resolve_name
from types import FunctionType

import httptools
import pytest

HTTP = "uvicorn.protocols.http.httptools_impl"
SOCKETS = "uvicorn.protocols.websockets.websockets_sansio_impl:WebSocketsSansIOProtocol"

LIBRARIES = packages_distributions()
RELIED_ON = [
    (
        f"{HTTP}:HttpToolsProtocol",
        "parser url headers scope cycle pipeline transport loop client server_state app tasks "
        "logger access_logger access_log",
        "`HttpProtocol` bounds, counts and drops what a connection holds of its requests",
    ),
    (
        f"{HTTP}:HttpToolsProtocol",
        "on_header on_headers_complete on_body on_message_complete on_response_complete "
        "_start_asgi_task expect_100_continue",
        "`HttpProtocol` overrides these steps of a request, to check heads and let requests wait",
    ),
    (
        f"{HTTP}:HttpToolsProtocol",
        "flow",
        "`HttpProtocol` puts its own `Flow` there, which pauses reading for two reasons",
    ),
    (
        f"{HTTP}:HttpToolsProtocol",
        "timeout_keep_alive timeout_keep_alive_task timeout_keep_alive_handler "
        "_unset_keepalive_if_required",
        "`HttpProtocol` ends a connection whose client sends nothing, and lets it linger",
    ),
    (
        f"{HTTP}:HttpToolsProtocol",
        "_get_upgrade _should_upgrade handle_websocket_upgrade send_400_response",
        "`HttpProtocol` decides itself which heads open a WebSocket, and refuses wrong ones",
    ),
    (
        f"{HTTP}:RequestResponseCycle",
        "body more_body response_complete disconnected keep_alive message_event run_asgi",
        "`HttpProtocol` begins a request, counts its bytes while it runs, and ends it early",
    ),
    (
        f"{HTTP}:RequestResponseCycle",
        "scope transport flow access_log default_headers more_body waiting_for_100_continue "
        "response_started on_response receive send",
        "`shortcuts.py` reads a body and writes a reply as `receive` and `send` do",
    ),
    (HTTP, "STATUS_LINE", "`HttpProtocol` answers where no request can be answered"),
    (
        "uvicorn.protocols.http.flow_control:FlowControl",
        "_transport read_paused write_paused pause_reading resume_reading",
        "`Flow` pauses reading for uvicorn and while bytes wait to be parsed",
    ),
    ("uvicorn.server:ServerState", "total_requests", "`HttpProtocol` counts pipelined requests"),
    (
        "uvicorn.server:ServerState",
        "connections",
        "`TlsHandshake` enters itself there, so that a stopping server ends it",
    ),
    (
        "uvicorn.config:Config",
        "loaded_app",
        "`TlsHandshake` puts another application there for clients without a certificate",
    ),
    ("uvicorn.server:Server", "started", "`serve` knows by it whether a stop came before a start"),
    (
        "uvicorn._types",
        "ASGI3Application ASGIReceiveEvent ASGISendEvent",
        "the protocols are annotated with them",
    ),
    (
        SOCKETS,
        "queue frames conn transport read_paused writable",
        "`WebSocketProtocol` counts what a client has sent, and takes no more than is read",
    ),
    (
        SOCKETS,
        "handshake_initiated handshake_complete initial_response close_sent",
        "`WebSocketProtocol` knows by them whether frames may be parsed",
    ),
    (
        SOCKETS,
        "handle_connect handle_events handle_text handle_bytes handle_cont handle_ping "
        "send_receive_event_to_app receive send",
        "`WebSocketProtocol` overrides these steps of a message, to join and to bound it",
    ),
    (
        SOCKETS,
        "keepalive_timeout stop_keepalive schedule_ping pong_timer pending_ping_payload",
        "`WebSocketProtocol` hangs up on no client whose answer it did not read",
    ),
    (
        "websockets.http11",
        "MAX_NUM_HEADERS MAX_LINE_LENGTH",
        "`WebSocketProtocol` lets in what the HTTP parser has let through",
    ),
    (
        "websockets.server:ServerProtocol",
        "reader events handshake_exc state fail data_to_send",
        "`WebSocketProtocol` counts an unfinished frame, and closes with a code of its own",
    ),
    (
        "websockets.streams:StreamReader",
        "buffer discard",
        "`WebSocketProtocol` counts an unfinished frame, and drops it",
    ),
    ("websockets.frames:Frame", "data fin", "`WebSocketProtocol` joins the parts of a message"),
    (
        "grpc._cython.cygrpc",
        "AioServer _ServicerContext _LOGGER",
        "`new_server` ends calls of unknown methods before grpcio decodes their paths",
    ),
    (
        "grpc._cython.cygrpc:AioServer",
        "_request_call is_running",
        "`new_server` overrides how grpcio waits for a call; `is_running` asks it",
    ),
    ("grpc.aio._server:Server", "_server", "`is_running` asks grpcio's core"),
    (
        "redis.asyncio.connection",
        "parse_url",
        "`SRUSERVE_STORE` is read as redis-py reads it, to name the options that it may have",
    ),
    (
        "redis.asyncio.connection:ConnectionPool",
        "make_connection disconnect",
        "`redis_pool` tries the options; a demoted primary's connections are dropped",
    ),
    (
        "redis.asyncio.connection:ConnectionPool",
        "get_connection get_available_connection ensure_connection release "
        "_available_connections _in_use_connections",
        "`redis_pool` takes and gives back connections without locks",
    ),
    (
        "redis.asyncio.connection:Connection",
        "_socket_is_empty _reader",
        "`redis_pool` looks whether a connection is ready",
    ),
    (
        "redis.asyncio.connection:Connection",
        "read_response disconnect _writer",
        "`Connections` sends commands that are encoded already, and ends a connection that is late",
    ),
    ("redis.commands.core:AsyncScript", "sha", "`RedisClient` names its scripts by their hashes"),
    (
        "tokenizers.models:BPE",
        "_resize_cache",
        "`Words` bounds what the library keeps of words; without it, a server's memory grows",
    ),
    (
        "tokenizers.models:Unigram",
        "_resize_cache",
        "`Words` bounds what the library keeps of words; without it, a server's memory grows",
    ),
    (
        "tokenizers:Tokenizer",
        "encode_batch_fast",
        "`Words` leaves the interpreter to other threads while it makes ids",
    ),
    (
        "prometheus_client:Histogram",
        "_upper_bounds _sum _buckets",
        "`observer` records values without the library's checks of each",
    ),
    (
        "prometheus_client:Counter",
        "_value",
        "`counter` records amounts without the library's checks of each",
    ),
    (
        "prometheus_client.values",
        "MmapedDict",
        "`preallocate_files` puts its own there, whose files have no holes",
    ),
    (
        "prometheus_client.mmap_dict:MmapedDict",
        "_init_value _capacity _used _f _positions read_all_values_from_file",
        "`_PreallocatedFile` allocates a file before it is mapped; `EndedWorkers` reads files",
    ),
]


@pytest.mark.parametrize(
    ("owner", "name", "why"),
    [
        pytest.param(owner, name, why, id=f"{owner}.{name}")
        for owner, names, why in RELIED_ON
        for name in names.split()
    ],
)
def test_a_library_has_what_is_relied_on(owner: str, name: str, why: str) -> None:
    (library,) = LIBRARIES[re.split("[.:]", owner)[0]]
    try:
        existing = members(resolve_name(owner))
    except (ImportError, AttributeError):
        existing = set()
    assert name in existing, f"{library} {version(library)} has no {owner}.{name}: {why}"


def members(owner: object) -> set[str]:
    """The names in a module, or of a class and of what its methods set."""
    names = set(dir(owner))
    for each in getattr(owner, "__mro__", ()):
        names.update(getattr(each, "__annotations__", ()))
        for method in vars(each).values():
            if isinstance(method, FunctionType):
                code = dis.get_instructions(method)
                names.update(step.argval for step in code if step.opname == "STORE_ATTR")
    return names


def test_httptools_says_where_another_protocol_begins() -> None:
    """`HttpProtocol` hands over, or parses again, all that follows the head."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as upgrade:
        httptools.HttpRequestParser(object()).feed_data(head + b"rest")
    assert upgrade.value.args[0] == len(head)


def test_httptools_can_be_made_to_parse_after_a_last_request() -> None:
    """`HttpProtocol` begins a head again without its offer of another protocol."""
    parser = httptools.HttpRequestParser(object())
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    parser.feed_data(request + request)
