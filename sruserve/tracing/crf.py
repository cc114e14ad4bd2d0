"""CRFs as of `pytorch-crf`: a module's scores without the search for the best path after them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from sruserve.tracing.errors import TracingError
from sruserve.tracing.source import running_line

NAMES = ("start_transitions", "end_transitions", "transitions")


def crfs_of(module: nn.Module) -> list[nn.Module]:
    """Return the linear-chain CRFs in a module, by the names of their parameters."""
    return [each for each in module.modules() if _is_crf(each)]


@contextmanager
def without_decoding(crfs: Sequence[nn.Module]) -> Iterator[list[nn.Module]]:
    """Let `decode` return the scores that it gets, for a while; yields the CRFs that were called.

    A call with a mask raises `TracingError`: masks are for padding, which the server does not have.
    """
    called: list[nn.Module] = []

    def replacement(crf: nn.Module) -> Any:
        def decode(emissions: Tensor, mask: Any = None) -> Tensor:
            if mask is not None:
                raise TracingError(
                    "CRF.decode has a mask, for padding that the server does not have: call it "
                    "without one where no lengths are passed",
                    running_line(),
                )
            called.append(crf)
            return emissions

        return decode

    try:
        for crf in crfs:
            crf.__dict__["decode"] = replacement(crf)
        yield called
    finally:
        for crf in crfs:
            crf.__dict__.pop("decode", None)


def crf_tensors(crf: nn.Module) -> dict[str, Tensor]:
    """Return a CRF's tensors by their names in a model folder."""
    return {f"crf.{name}": cast("Tensor", getattr(crf, name)).detach() for name in NAMES}


def _is_crf(module: nn.Module) -> bool:
    tensors = [getattr(module, name, None) for name in NAMES]
    return all(isinstance(tensor, Tensor) for tensor in tensors) and hasattr(module, "decode")
