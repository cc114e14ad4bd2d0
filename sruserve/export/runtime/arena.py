"""One arena for the memory of all graphs in this process: a graph cannot take more than its limit.

The number of rows decides how much memory a run takes. ONNX Runtime fails a run that asks for more.
"""

from threading import Lock

import onnxruntime

from sruserve.model.files import memory_bytes

_GROWS_BY_DOUBLING = 0  # arena_extend_strategy: few regions, whatever sizes requests have
_lock = Lock()
_bounded = False


def bound_memory() -> None:
    """Create the arena, unless it exists: half of the memory that this process may use."""
    global _bounded
    with _lock:
        if not _bounded:
            register_arena(memory_bytes() // 2)
            _bounded = True


def register_arena(max_bytes: int) -> None:
    """Let the sessions that are made from now on share an arena; a process can do it once."""
    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    options = {"max_mem": max_bytes, "arena_extend_strategy": _GROWS_BY_DOUBLING}
    onnxruntime.create_and_register_allocator(
        onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory), onnxruntime.OrtArenaCfg(options)
    )
