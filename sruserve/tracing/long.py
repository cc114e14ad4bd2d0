"""Long inputs, which show whether a module cuts them: the folder would read them whole."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from sruserve.tracing import answers
from sruserve.tracing.errors import TracingError
from sruserve.tracing.trace import Traced

_ALWAYS = (600, 4200)  # steps; 4,096 is the most that networks commonly read
_MAX_STEPS = 1 << 16  # steps at which a limit is compared
_NUMBERS = 1 << 26  # in the answers to one long input: 256 MiB


def long_answers(
    module: nn.Module, traced: Traced, inputs: Sequence[Tensor], by_step: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield long inputs, drawn from the steps of `inputs`, and the module's answer to each.

    A module may refuse so many steps, or give no number; such an input is left out. See
    `module_answers`. Raises `TracingError` for a limit that would take too long to compare.
    """
    steps = torch.cat(list(inputs))
    for length in _lengths(traced):
        generator = torch.Generator().manual_seed(length)
        long = steps[torch.randint(len(steps), (length,), generator=generator)]
        try:
            (answer,) = answers.module_answers(module, traced, [long], by_step)
        except Exception:  # noqa: S112 - whatever the module raises
            continue
        if length == _ALWAYS[0] or answer.isfinite().all():
            yield long, answer


def _lengths(traced: Traced) -> list[int]:
    """Return numbers of steps: some, and both sides of each that the module asks for."""
    outputs = traced.rows.width
    lengths = {_ALWAYS[0], *(n for n in _ALWAYS if n * outputs <= _NUMBERS)}
    for limit, place in traced.limits.items():
        if 2 * limit > _MAX_STEPS or 2 * limit * outputs > _NUMBERS:
            raise TracingError(
                f"the module may compute something else for {limit:,} steps and more, which are "
                "too many to compare: remove the limit, because the server has none",
                place,
            )
        lengths |= {limit, 2 * limit}
    return sorted(lengths)
