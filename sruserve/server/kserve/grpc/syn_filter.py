"""Let the kernel ignore the new connections of some addresses to a listening socket.

A socket's classic BPF program judges each packet, and a listener gets only those that open one.
"""

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_MAX_NETWORKS = 100  # the kernel's memory for a program has a limit, and so has its length
_IP_HEADER = 0xFFF0_0000  # SKF_NET_OFF: offsets from here are those in the IP header
_V4_SOURCE, _V6_SOURCE = 12, 8
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
_ALL_BYTES = 0xFFFF_FFFF

Instruction = tuple[int, int, int, int]  # code, jumps if true and if false, operand


def ignore_networks(listener: socket.socket, networks: Iterable[str]) -> None:
    """Ignore packets of exactly these networks; does nothing where the system has no filters."""
    program = list(_program(networks))
    with suppress(OSError):
        if len(program) == 1:
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        code = b"".join(struct.pack("=HBBI", *each) for each in program)
        buffer = ctypes.create_string_buffer(code, len(code))
        pointer = struct.pack("@HP", len(program), ctypes.addressof(buffer))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _program(networks: Iterable[str]) -> Iterator[Instruction]:
    for network in list(networks)[:_MAX_NETWORKS]:
        version, offset, words = _source(network)
        yield _LOAD_BYTE, 0, 0, _IP_HEADER
        yield _AND, 0, 0, 0xF0
        yield _JUMP_IF_EQUAL, 0, 2 * len(words) + 1, version << 4
        for place, word in enumerate(words):
            yield _LOAD_WORD, 0, 0, _IP_HEADER + offset + 4 * place
            yield _JUMP_IF_EQUAL, 0, 2 * (len(words) - place) - 1, word
        yield _RETURN, 0, 0, 0
    yield _RETURN, 0, 0, _ALL_BYTES


def _source(network: str) -> tuple[int, int, tuple[int, ...]]:
    """The IP version of a network, and where in the header the words of its source are."""
    if "." in network:  # maybe within an IPv6 address, whose packets are those of IPv4
        packed = ipaddress.IPv4Address(network.rpartition(":")[2]).packed
        return 4, _V4_SOURCE, struct.unpack(">I", packed)
    packed = ipaddress.IPv6Address(network + "::").packed[:8]
    return 6, _V6_SOURCE, struct.unpack(">2I", packed)
