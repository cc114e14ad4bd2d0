"""Choose the norm of a device: torch's, or ours where a row's bits depend on the other rows."""

import logging

import torch

from sruserve.kernels.candidates import Candidate, chosen
from sruserve.kernels.norm import Norm, NormKind

log = logging.getLogger("sruserve.kernels")

_ROWS, _WIDTHS = (1, 2, 17, 64, 129), (500, 512, 2048)


def choose_norm(device: torch.device, dtype: torch.dtype) -> None:
    """Use the Triton norm from now on if torch's gives a row other bits beside other rows.

    Guarantees 1 to 4 need norms whose bits do not depend on the number of rows, and torch promises
    none.
    """
    if Candidate.TRITON_NORM in chosen or not _depends_on_rows(device, dtype):
        return
    log.warning("the norms of torch depend on the number of rows here: using those in Triton")
    chosen.add(Candidate.TRITON_NORM)


def _depends_on_rows(device: torch.device, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(3)
    for width in _WIDTHS:
        x = torch.randn(max(_ROWS), width, generator=generator).to(device, dtype)
        for kind in NormKind:
            norm = Norm(x[0], None, kind)
            whole = norm(x)
            if any(not torch.equal(norm(x[:few]), whole[:few]) for few in _ROWS):
                return True
    return False
