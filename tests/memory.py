"""What is allocated: the same on a fast and a slow machine, and whatever else is in memory."""

import ctypes
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from xml.etree import ElementTree

import torch

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fopen.restype = ctypes.c_void_p
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def malloc_bytes() -> int:
    """Bytes that glibc has given out, in all threads: tensors, and what C and C++ hold."""
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(_libc.fopen(file.name.encode(), b"w"))
        assert _libc.malloc_info(0, stream) == 0
        _libc.fclose(stream)
        root = ElementTree.parse(file.name).getroot()
    sizes = {each.get("type"): int(each.get("size", 0)) for each in root if each.tag != "heap"}
    return sizes["current"] - sizes["fast"] - sizes["rest"] + sizes["mmap"]


def python_blocks() -> int:
    """Blocks of memory that Python's objects have, without garbage."""
    gc.collect()
    return sys.getallocatedblocks()


def least_growth(measure: Callable[[], int], work: Callable[[], object], runs: int = 3) -> int:
    """The least that a measure grows by over several runs of the same work.

    What work leaves behind it leaves each time; what others of the process allocate, they do not.
    """
    work()  # fills what is filled once
    growths = []
    for _ in range(runs):
        before = measure()
        work()
        growths.append(measure() - before)
    return min(growths)


def grows_by_less(
    limit: int, measure: Callable[[], int], work: Callable[[], object], runs: int = 3
) -> bool:
    """Whether a measure grows by less than a limit in any of several runs of the same work."""
    for _ in range(runs):
        before = measure()
        work()
        if measure() - before < limit:
            return True
    return False


def resident_bytes(tensor: torch.Tensor) -> int:
    """How much of a tensor is in memory: pages that nobody wrote to are not."""
    begin = tensor.data_ptr() // _PAGE_BYTES * _PAGE_BYTES
    length = tensor.data_ptr() + tensor.nbytes - begin
    pages = (ctypes.c_ubyte * -(-length // _PAGE_BYTES))()
    assert _libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(length), pages) == 0
    return sum(page & 1 for page in pages) * _PAGE_BYTES
