"""Compile a kernel for a GPU that this machine need not have, and say what came of it."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernels.aot import Configuration

_WARP = 32


@dataclass(frozen=True)
class Facts:
    """The compiler's result for a configuration, in numbers.

    spill_bytes: stack and local memory. async_copies, barriers: instructions in the PTX.
    sums_from_others: products that start from other numbers than zeros or, in a loop, their own
    sums so far. lacks: wanted patterns that the PTX does not hold.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    async_copies: int
    barriers: int
    sums_from_others: int
    lacks: int


def compile_ahead(wanted: Configuration, capability: int) -> Facts:
    compiled = triton.compile(
        _source(wanted), target=GPUTarget("cuda", capability, _WARP), options=wanted.options
    )
    ptx = compiled.asm["ptx"]
    usage = _cuobjdump("--dump-resource-usage", compiled.asm["cubin"])
    used = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", usage)}
    return Facts(
        registers=used["REG"],
        spill_bytes=used["STACK"] + used["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        async_copies=len(re.findall(r"cp\.async\.c[ag]", ptx)),
        barriers=len(re.findall(r"bar\.(?:warp\.)?sync", ptx)),
        sums_from_others=_sums_from_others(compiled.asm["ttir"]),
        lacks=int(not re.search(_pattern(wanted, capability), ptx)),
    )


def key(wanted: Configuration, capability: int) -> str:
    """A digest of all that `compile_ahead` depends on, this file included.

    Triton's hash of a source covers the kernel, what it calls, its constants and its signature.
    """
    parts = (
        triton.__version__,
        _source(wanted).hash(),
        sorted(wanted.options.items()),
        capability,
        _pattern(wanted, capability),
        Path(__file__).read_text(),
    )
    return sha256(repr(parts).encode()).hexdigest()[:16]


def _source(wanted: Configuration) -> ASTSource:
    types = {
        name: "constexpr" if name in wanted.constants else wanted.signature[name]
        for name in wanted.kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(types.values())
        if kind.startswith("*")
    }
    return ASTSource(wanted.kernel, types, wanted.constants, aligned)


def _pattern(wanted: Configuration, capability: int) -> str:
    return wanted.contains.get(capability, "")


def _sums_from_others(ttir: str) -> int:
    starts = re.findall(r"tt\.dot %\S+, %\S+, (%\w+)", ttir)
    return sum(bool(re.search(rf"{each} = (?!arith\.constant)[a-z]", ttir)) for each in starts)


def _cuobjdump(what: str, cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [tool, what, file.name], capture_output=True, check=True, text=True
        ).stdout
