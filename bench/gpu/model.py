"""A language model with random weights, and random streams, for the decode timings."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sruserve.kernels import Cell, CellLayer, make_linear
from sruserve.kernels.decode import Decoder
from sruserve.kernels.merged import MergedLayers
from sruserve.kernels.slots import WINDOW, DecodeInputs


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a model: SRU layers of `width` with factorised weights, embeddings of `inputs`.

    As in the reference's language models, the first layer projects its own highway input (k = 4),
    and its weight is not factorised, because its input is narrower than the projection.
    """

    layers: int
    width: int
    projection: int
    inputs: int
    vocabulary: int

    @property
    def state_width(self) -> int:
        return self.layers * self.width

    @property
    def multiplied(self) -> int:
        """Number of weights that each token is multiplied by."""
        first = self.inputs * 4 * self.width
        other = self.width * self.projection + self.projection * 3 * self.width
        return first + (self.layers - 1) * other + self.width * self.vocabulary


LANGUAGE_MODEL = Size(layers=12, width=2048, projection=512, inputs=256, vocabulary=256)
SMALL = Size(layers=3, width=320, projection=128, inputs=96, vocabulary=200)
TINY = Size(layers=2, width=32, projection=16, inputs=16, vocabulary=24)


def random_decoder(
    size: Size, dtype: torch.dtype, states: Tensor, fast: bool = False, seed: int = 1
) -> Decoder:
    """Return a model whose gates and states vary; equal seeds give equal weights, fast or not."""
    device = states.device
    generator = torch.Generator(device).manual_seed(seed)

    def random(*shape: int, spread: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator, device=device) * spread

    def weight(out: int, inputs: int) -> Tensor:
        return random(out, inputs, spread=inputs**-0.5)

    layers = []
    for number in range(size.layers):
        first = number == 0
        inputs = size.inputs if first else size.projection
        planes = weight((4 if first else 3) * size.width, inputs)
        projection = None if first else weight(size.projection, size.width)
        layers.append(
            CellLayer(
                cell=Cell(blocks=4 if first else 3),
                linear=make_linear(planes, None, dtype, device, fast),
                projection=None
                if projection is None
                else make_linear(projection, None, dtype, device, fast),
                weight_c=random(2, size.width, spread=0.5),
                bias=random(2, size.width, spread=0.5),
                column=number * size.width,
                highway_is_input=not first,
                fast=fast,
            )
        )
    return Decoder(
        embedding=random(size.vocabulary, size.inputs).to(dtype),
        layers=layers,
        head=make_linear(
            weight(size.vocabulary, size.width) * 3, random(size.vocabulary), dtype, device, fast
        ),
        states=states,
        merged=MergedLayers.of(layers),
    )


def cell_layers(decoder: Decoder) -> list[CellLayer]:
    """Return the layers of a `random_decoder`."""
    return [each for each in decoder.layers if isinstance(each, CellLayer)]


def weight_bytes(decoder: Decoder) -> int:
    """Return the bytes of the weights that one token is multiplied by."""
    layers = cell_layers(decoder)
    products = [each.linear for each in layers] + [decoder.head]
    products += [each.projection for each in layers if each.projection is not None]
    return sum(each.weight.nbytes for each in products)


def random_streams(
    rows: Tensor, steps: int, vocabulary: int, filtered: bool = False, seed: int = 2
) -> DecodeInputs:
    """Return streams that continue in place in `rows` (streams), int64, on the CPU.

    filtered: use every filter of the sampler, in different mixes; otherwise temperature 1 alone.
    """
    count = len(rows)
    g = torch.Generator().manual_seed(seed)
    streams = DecodeInputs(
        tokens=torch.randint(0, vocabulary, (count,), generator=g),
        source=rows.clone(),
        target=rows.clone(),
        limits=torch.full((count,), steps),
        seed=torch.randint(0, 1 << 62, (count,), generator=g),
        choice=torch.zeros(count, dtype=torch.int64),
        draw=torch.zeros(count, dtype=torch.int64),
        temperature=torch.ones(count),
        top_p=torch.ones(count),
        min_p=torch.zeros(count),
        penalty=torch.ones(count),
        top_k=torch.zeros(count, dtype=torch.int32),
        window=torch.full((count, WINDOW), -1),
    )
    if not filtered:
        return streams
    each = torch.arange(count)
    return replace(
        streams,
        temperature=torch.rand(count, generator=g).where(each % 5 > 0, 0.0) + 0.3 * (each % 5 > 0),
        top_p=torch.full((count,), 0.9).where(each % 2 > 0, 1.0),
        min_p=torch.full((count,), 0.02).where(each % 4 == 1, 0.0),
        penalty=torch.full((count,), 1.2).where(each % 3 > 0, 1.0),
        top_k=torch.full((count,), vocabulary // 5).where(each % 3 == 1, 0).int(),
        window=torch.randint(-1, vocabulary, (count, WINDOW), generator=g),
    )
