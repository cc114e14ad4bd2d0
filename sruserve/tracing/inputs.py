"""What a module reads: whole numbers or features, and how to draw some at random."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sruserve.model.errors import OptionError

LENGTHS = (1, 2, 7, 33)  # of the examples that are drawn


@dataclass(frozen=True, slots=True)
class InputKind:
    """Ids below `vocabulary`, or rows of `width` features; width 0: a number for each step."""

    vocabulary: int | None = None
    width: int | None = None

    def draw(self, *shape: int, seed: int) -> Tensor:
        """Draw an input with axes of these lengths: int64 ids, or float32 features."""
        generator = torch.Generator().manual_seed(seed)
        if self.vocabulary is not None:
            return torch.randint(self.vocabulary, shape, generator=generator)
        assert self.width is not None
        own = (self.width,) if self.width else ()
        return torch.randn(*shape, *own, generator=generator)


def kinds_of(module: nn.Module, examples: Sequence[Tensor], ids: bool) -> list[InputKind]:
    """Return what the module may read, likeliest first.

    ids: whether a tokenizer says that it reads ids. Raises `OptionError`.
    """
    tables = [each for each in module.modules() if isinstance(each, nn.Embedding)]
    if examples:
        if not examples[0].is_floating_point():
            sizes = [each.num_embeddings for each in tables]
            sizes = sizes or [1 + max(int(example.max()) for example in examples)]
            return [InputKind(vocabulary=min(sizes))]
        return [InputKind(width=examples[0].shape[1] if examples[0].dim() > 1 else 0)]
    if tables:
        return [InputKind(vocabulary=min(each.num_embeddings for each in tables))]
    if ids:
        return [InputKind(vocabulary=2)]
    widths: dict[int, None] = {}
    for each in module.modules():
        for name in ("input_size", "in_features", "num_features"):
            if isinstance(width := getattr(each, name, None), int):
                widths[width] = None
        if isinstance(each, nn.LayerNorm) and len(each.normalized_shape) == 1:
            widths[each.normalized_shape[0]] = None
    if not widths:
        raise OptionError("examples: the module shows no width of its input; pass an example")
    return [InputKind(width=width) for width in widths]
