"""The private members of torch that CPU products use, and what happens without them.

Another release of torch may remove or change them without notice, so each is tried before use.
"""

import logging
import re
from collections.abc import Callable
from functools import cache

import torch

log = logging.getLogger("sruserve.kernels")

TESTED = (2, 13)  # the newest torch with which all tests have run
_SIZE = 16  # rows, inputs and outputs of the trial
# The sizes of the trial of sums: oneDNN's blocks of inputs depend on the rows from 33 on.
_SUMS, _HALF_SUM, _MANY_ROWS = 64, 512, (2, 32, 40, 64, 100, 256)


def _multiply_packed() -> None:
    """Try the packed product with a weight that moves each column of the inputs."""
    x = torch.arange(float(_SIZE * _SIZE)).view(_SIZE, _SIZE)
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.eye(_SIZE).roll(1, 0), _SIZE)
    product = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    if not torch.equal(product, x.roll(1, 1)):
        raise RuntimeError("the packed product differs")


_PACKED = "torch.ops.mkldnn._linear_pointwise with _reorder_linear_weight"
_MULTIPLIES_BFLOAT16 = "torch.ops.mkldnn._is_mkldnn_bf16_supported"
_HAS_INSTRUCTIONS = "torch.cpu._is_avx512_bf16_supported"
# Each member with its trial, and what is lost without it.
_MEMBERS: dict[str, tuple[Callable[[], object], str]] = {
    _PACKED: (
        _multiply_packed,
        "products are slower, and results of other splits and batches agree to 1e-5",
    ),
    _MULTIPLIES_BFLOAT16: (
        lambda: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "bfloat16 products are computed in float32, which is slower",
    ),
    _HAS_INSTRUCTIONS: (
        lambda: torch.cpu._is_avx512_bf16_supported(),
        "single rows of bfloat16 are multiplied in pairs, which is slower",
    ),
}


@cache
def missing_members() -> dict[str, str]:
    """The members that this torch lacks or has changed, each with what is lost without it."""
    return {name: loss for name, (trial, loss) in _MEMBERS.items() if _fails(trial)}


def has_packed_linear() -> bool:
    """Whether torch has oneDNN's packed product; without it rows agree to 1e-5, not bit for bit."""
    return _has_onednn() and _PACKED not in missing_members()


def multiplies_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 here, each row alike in any batch; else float32 is used.

    The product of two bfloat16 numbers is exact in float32, so only the weights' bytes grow.
    """
    if not has_packed_linear():
        return True
    if _MULTIPLIES_BFLOAT16 in missing_members():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and rows_agree()


@cache
def rows_agree() -> bool:
    """Whether oneDNN sums a row of bfloat16 in the same order in batches of other sizes.

    With AMX it does not. The trial's sums cancel, so that their rounding is all that is left.
    """
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(_HALF_SUM, generator=generator)
    weight = torch.randn(_SUMS, _HALF_SUM, generator=generator)
    weight = torch.cat((weight, -weight[:, order]), 1).bfloat16()
    x = torch.randn(_MANY_ROWS[-1], _HALF_SUM, generator=generator)
    x = torch.cat((x, x[:, order]), 1).bfloat16()
    weight = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    *some, whole = (
        torch.ops.mkldnn._linear_pointwise(x[:rows], weight, None, "none", [], "")
        for rows in _MANY_ROWS
    )
    agree = all(torch.equal(product, whole[: len(product)]) for product in some)
    if not agree:
        log.warning(
            "oneDNN's sums of bfloat16 depend on the batch, so products are computed in float32, "
            "which is slower; start with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, and import sruserve "
            "before torch computes"
        )
    return agree


def has_bfloat16_instructions() -> bool:
    """Whether the processor multiplies bfloat16 itself, as far as torch knows."""
    if _HAS_INSTRUCTIONS in missing_members():
        return False
    return bool(torch.cpu._is_avx512_bf16_supported())


def torch_warning() -> str:
    """What this torch costs on a CPU, and whether it is newer than the tested one; else empty."""
    if not _has_onednn() or not (missing := missing_members()):
        return ""
    tested = ".".join(map(str, TESTED))
    what = f"newer than sruserve was tested with ({tested})" if is_untested() else "incomplete"
    losses = "; ".join(f"without {name}, {loss}" for name, loss in missing.items())
    return f"torch {torch.__version__} is {what}: {losses}. Torch {tested} has all of it"


def is_untested() -> bool:
    """Whether torch is newer than the newest one with which all tests have run."""
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return version is not None and (int(version[1]), int(version[2])) > TESTED


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _fails(trial: Callable[[], object]) -> bool:
    try:
        trial()
    except (AttributeError, TypeError, RuntimeError):  # removed, or with other arguments
        return True
    return False
