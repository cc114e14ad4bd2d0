"""Load and call the compiled CPU kernel, `kernel.c`, through ctypes, which releases the GIL."""

import ctypes
import os
import struct
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from sruserve.kernels.cell import Cell, Kind
from sruserve.kernels.panel_weight import GROUP
from sruserve.kernels.ragged import RaggedBatch

# The arguments of each call, in the layout of the C source's structs.
SCAN = struct.Struct("=22q2d")
GATED = struct.Struct("=27q")
ATTENTION = struct.Struct("=20qd")
MATRIX = struct.Struct("=8q")
LAYER = struct.Struct("=10q" + 3 * "3qd" + "10q2d")
STACK = struct.Struct("=23q")
INTEGER = struct.Struct("=12q")
DECODER_ATTENTION = struct.Struct("=18qd")
_CALLS = (
    "scan",
    "gated",
    "attention",
    "product",
    "stack",
    "project",
    "integer_product",
    "decoder_attention",
)
_ERRORS: dict[int, tuple[type[Exception], str]] = {
    1: (ValueError, "offsets must start at 0, never fall, and end within the rows"),
    2: (IndexError, "source and target must be rows of states, or -1"),
    3: (IndexError, "a layer's state must lie within the columns of states"),
    4: (ValueError, "a state row holds no valid count of positions after its ring"),
    5: (MemoryError, "not enough memory for the attention scores of a window"),
    6: (ValueError, "the work memory is too small for the call"),
    7: (IndexError, "an id must be a row of the embedding"),
    8: (IndexError, "a query's keys must be rows of its table, and fit into shares"),
}


def _load() -> ctypes.CDLL | None:
    """Load the library that `setup.py` builds next to this file; it runs on torch's threads."""
    paths = [Path(__file__).with_name("_kernel" + suffix) for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.sru_version.restype = ctypes.POINTER(ctypes.c_int64)
        packed = (SCAN, GATED, ATTENTION, MATRIX, LAYER, STACK, INTEGER, DECODER_ATTENTION)
        version = (*(arguments.size for arguments in packed), GROUP, len(Kind))
        if tuple(library.sru_version()[: len(version)]) != version:
            return None
    except (OSError, AttributeError):  # built for another machine or another version
        return None
    for name in _CALLS:
        getattr(library, f"sru_{name}").argtypes = [ctypes.c_char_p]
    library.sru_instruction_set.restype = ctypes.c_char_p
    library.sru_use_instruction_set.argtypes = [ctypes.c_char_p]
    library.sru_set_parallel.argtypes = [ctypes.c_void_p]
    library.sru_set_parallel(_gomp_parallel())
    return library


def _gomp_parallel() -> int | None:
    """Return `GOMP_parallel` of torch's own runtime; a second one would compete for the cores."""
    home = Path(torch.__file__).parent
    bundled = [*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")]
    for path in [*map(str, bundled), "libgomp.so.1"]:
        try:
            runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


_library = _load()


def available() -> bool:
    """Whether the compiled kernel is installed; it is not if there was no C compiler."""
    return _library is not None


def instruction_set() -> str:
    """Return the instruction set: "avx512", "avx2" or "baseline"; "none" without a kernel."""
    return _library.sru_instruction_set().decode() if _library else "none"


def call(entry: str, arguments: bytes) -> None:
    """Run a function of the library. It checks its arguments before it writes anything.

    Raises one of `_ERRORS`, or RuntimeError if the kernel is not installed.
    """
    if _library is None:
        raise RuntimeError(
            "sruserve was installed without its compiled CPU kernel: install a C compiler and "
            "reinstall sruserve, or use the reference"
        )
    if error := getattr(_library, entry)(arguments):
        kind, message = _ERRORS[error]
        raise kind(message)


def cpu_scan(
    u: Tensor,
    residual: Tensor | None,
    weight_c: Tensor | None,
    bias: Tensor | None,
    batch: RaggedBatch,
    column: int,
    cell: Cell,
    *,
    backward_from: int | None = None,
) -> Tensor:
    """Run `reference_scan` with vectors and threads; every tensor is contiguous.

    The bits of a (sequence, channel) depend only on its own inputs and the instruction set: not on
    the batch, the width, the split of time into calls, or the number of threads.

    Raises ValueError or IndexError, before it writes anything, for tensors that do not fit.
    """
    states, offsets, source, target = batch.states, batch.offsets, batch.source, batch.target
    rows, columns = u.shape
    width = columns // cell.blocks
    dtype = u.dtype
    if backward_from is None:
        backward_from = width
    sequences = source.shape[0]
    state_rows, state_width = states.shape
    if not (
        width
        and columns == cell.blocks * width
        and (dtype is torch.float32 or dtype is torch.bfloat16)
        and states.dtype is torch.float32
        and offsets.dtype is source.dtype is target.dtype is torch.int64
        and offsets.shape == (sequences + 1,)
        and target.shape == (sequences,)
        and 0 <= backward_from <= width
    ):
        raise ValueError(
            f"scan: a tensor has the wrong shape or dtype (u is {tuple(u.shape)} of {dtype}); "
            "see reference_scan"
        )
    cell.check(residual, weight_c, bias)
    tensors = [u, states, offsets, source, target]
    if weight_c is not None and bias is not None:
        if not (
            weight_c.shape == bias.shape == (2, width)
            and weight_c.dtype is bias.dtype is torch.float32
        ):
            raise ValueError(f"weight_c and bias must have shape {(2, width)} and dtype float32")
        tensors += (weight_c, bias)
    if residual is not None:
        if residual.shape != (rows, width) or residual.dtype is not dtype:
            raise ValueError(f"residual must have shape {(rows, width)} and dtype {dtype}")
        tensors.append(residual)
    for tensor in tensors:
        if not (tensor.is_cpu and tensor.is_contiguous()):
            raise ValueError("scan: every tensor must be contiguous and on the CPU")
    h = torch.empty(rows, width, dtype=dtype)
    call(
        "sru_scan",
        SCAN.pack(
            u.data_ptr(),
            0 if residual is None else residual.data_ptr(),
            h.data_ptr(),
            0 if weight_c is None else weight_c.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            states.data_ptr(),
            offsets.data_ptr(),
            source.data_ptr(),
            target.data_ptr(),
            rows,
            cell.blocks,
            width,
            sequences,
            state_rows,
            state_width,
            column,
            backward_from,
            dtype is torch.bfloat16,
            cell.kind,
            cell.activation,
            cell.updated_reset,
            torch.get_num_threads(),
            cell.scale,
            cell.keep,
        ),
    )
    return h
