"""How many blocks of a compiled kernel fit on a multiprocessor at a time.

The limits are those of the CUDA programming guide. Blackwell's tensor memory is left out.
"""

REGISTERS = 65_536
QUARTERS = 4  # of a multiprocessor, each with its own registers and warps
WARPS, BLOCKS = 64, 32
SHARED_BYTES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
RESERVED_BYTES = 1024  # of each block's shared memory
_WARP = 32
_UNIT_REGISTERS, _UNIT_BYTES = 8, 128  # a thread's registers and a block's bytes are multiples


def blocks(registers: int, shared_bytes: int, warps: int, capability: int) -> int:
    """Return the blocks of a kernel on a multiprocessor; 0: it cannot run.

    registers: of a thread. shared_bytes, warps: of a block.
    """
    of_warp = _WARP * _multiple(registers, _UNIT_REGISTERS)
    of_block = _multiple(shared_bytes, _UNIT_BYTES) + RESERVED_BYTES
    return min(
        BLOCKS,
        WARPS // warps,
        SHARED_BYTES[capability] // of_block,
        QUARTERS * (REGISTERS // QUARTERS // of_warp) // warps,
    )


def _multiple(number: int, unit: int) -> int:
    return -(-number // unit) * unit
