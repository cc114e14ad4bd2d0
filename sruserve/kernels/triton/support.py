"""The GPUs on which each candidate can run."""

from functools import cache

import triton

from sruserve.kernels.candidates import Candidate, chosen

Capability = tuple[int, int]  # of a GPU, as torch has it; (0, 0) where Triton interprets


def is_used(name: Candidate, capability: Capability) -> bool:
    """Whether a variant is chosen, and can run on GPUs of this capability."""
    return name in chosen and not why_not(name, capability)


def why_not(name: Candidate, capability: Capability) -> str:
    """Why a variant cannot run on GPUs of this capability; an empty string if it can."""
    # Ampere has one instruction for all tiles. On Hopper and Blackwell 3.6 and 3.7 take another one
    # for 8 columns than for more, whose sums round differently; 3.9 does not (compiled).
    own_instructions = capability[0] in (9, 10)
    if name is Candidate.NARROW_STEP and own_instructions and _triton_version() < (3, 9):
        return "tiles of 8 columns have the bits of the others from Triton 3.9 on"
    return ""


@cache
def _triton_version() -> tuple[int, int]:
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)
