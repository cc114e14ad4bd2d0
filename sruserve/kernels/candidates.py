"""Variants of the kernels that no device has judged yet; each is off until one has.

`python -m bench.gpu --candidates NAME …` turns them on for a run. bench/results/notes-gpu.md says
what each is expected to gain.
"""

from enum import StrEnum


class Candidate(StrEnum):
    """A variant by its name on the command line.

    But for `TRITON_NORM`, and `MERGED_STEP` within `fast`, the bits stay.
    """

    NARROW_STEP = "narrow-step"  # 8 columns a program in steps of up to 64 streams
    MERGED_STEP = "merged-step"  # `fast`: gates and the next projection in one launch
    TRITON_NORM = "triton-norm"  # norms whose bits depend on no other row


chosen: set[Candidate] = set()


def choose(names: set[Candidate]) -> None:
    """Use these variants from now on, in place of those chosen before."""
    chosen.clear()
    chosen.update(names)
