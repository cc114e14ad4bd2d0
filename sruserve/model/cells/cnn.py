"""The convolutional network for sentences (Kim 2014): the largest values of its filters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from sruserve.kernels import Activation
from sruserve.kernels.convolution import ConvolutionLayer, endings
from sruserve.kernels.windows import Filters, Windows
from sruserve.model.cells.stack import (
    Builder,
    EachLayer,
    Shapes,
    Stack,
    StackConfig,
    Unidirectional,
    Width,
    Widths,
)
from sruserve.model.state import StateLayout

_MAX_WINDOW = 256  # steps
_MAX_PRODUCTS = 1 << 18  # numbers: the product of a step
_MAX_PADDING = 1 << 20  # steps
Window = Annotated[int, Field(ge=1, le=_MAX_WINDOW)]
Padding = Annotated[int, Field(ge=0, le=_MAX_PADDING)]
_ACTIVATIONS = {
    "relu": Activation.RELU,
    "tanh": Activation.TANH,
    "identity": Activation.IDENTITY,
}


class CNNConfig(Unidirectional, StackConfig):
    """Convolutions over time, side by side; each filter keeps its largest value (Kim 2014, eq. 3).

    Tensors: `convs.{i}.weight`, (width * filters, input_size), the filters' weights for a window's
    first step, then those for its second; `convs.{i}.bias`, (filters). `pad`, (input_size).
    """

    family: ClassVar[str] = "cnn"
    pools: ClassVar[bool] = True

    hidden_size: Width | Widths = Field(
        description="Filters of each width; or a list with one number per width."
    )
    num_layers: PositiveInt = 1
    filter_widths: Annotated[tuple[Window, ...], EachLayer] = Field(
        (3, 4, 5), min_length=1, description="Steps that a filter's window has."
    )
    padding: Padding | Annotated[tuple[Padding, ...], EachLayer] = Field(
        0,
        description="Zeros before an input, and after it; or a list with one number per width. "
        "Width - 1 is Kim's.",
    )
    min_length: int = Field(
        1,
        ge=1,
        le=_MAX_PADDING,
        description="An input of fewer steps is filled up at its end. In any case it is filled up "
        "until the widest window fits.",
    )
    pad_row: bool = Field(
        False, description="What fills an input up is the tensor `pad`, such as <pad>'s; or zeros."
    )
    activation: Literal["relu", "tanh", "identity"] = "relu"
    bias: bool = True

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.num_layers != 1:
            raise ValueError(
                "num_layers must be 1: hidden_size and filter_widths list the filters of one layer"
            )
        expected = len(self.filter_widths)
        if isinstance(self.padding, tuple) and len(self.padding) != expected:
            raise ValueError(
                f"padding lists {len(self.padding)} numbers for {expected} widths: list one for "
                "each"
            )
        if (products := sum(c * w for c, w, _ in self.convolutions)) > _MAX_PRODUCTS:
            raise ValueError(
                f"hidden_size and filter_widths give a step {products:,} products; the limit is "
                f"{_MAX_PRODUCTS:,}"
            )
        if self.pad_row and any(padding for *_, padding in self.convolutions):
            raise ValueError("pad_row is for windows without zeros around an input: set padding 0")
        return self

    @property
    def listed(self) -> tuple[int, str]:
        return len(self.filter_widths), "filter_widths"

    @property
    def convolutions(self) -> list[tuple[int, int, int]]:
        """Filters, width and padding of each convolution, in the order of their outputs."""
        return [
            (
                self.hidden_size if isinstance(self.hidden_size, int) else self.hidden_size[i],
                width,
                self.padding if isinstance(self.padding, int) else self.padding[i],
            )
            for i, width in enumerate(self.filter_widths)
        ]

    @property
    def shortest(self) -> int:
        """Number of steps that an input is filled up to."""
        return max(self.min_length, *(w - 2 * padding for _, w, padding in self.convolutions))

    def layer_hidden(self, layer: int) -> int:
        """Number of filters."""
        del layer
        return sum(count for count, *_ in self.convolutions)

    @property
    def note(self) -> str | None:
        """How an input is padded."""
        around = "no zeros" if not self.padding else f"{self._padding} zeros"
        kind = "the row `pad`" if self.pad_row else "zeros"
        return (
            f"max over time of windows of {_listed(self.filter_widths)} steps, with {around} "
            f"before and after an input; one of fewer than {self.shortest} steps is filled up "
            f"with {kind}"
        )

    @property
    def _padding(self) -> str:
        return str(self.padding) if isinstance(self.padding, int) else _listed(self.padding)

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for i, (count, width, _) in enumerate(self.convolutions):
            shapes[f"convs.{i}.weight"] = (width * count, self.input_size)
            if self.bias:
                shapes[f"convs.{i}.bias"] = (count,)
        if self.pad_row:
            shapes["pad"] = (self.input_size,)
        return shapes

    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        wider = self._windows(lambda _: 0).planes()[1:]
        sums = [(f"0.sums.{taps}", (columns,)) for taps, columns in enumerate(wider, 1)]
        return [*sums, ("0.largest", (self.output_size,)), ("0.steps", (1,))]

    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        windows = self._windows(layout.column)
        weights = [
            tensors[f"convs.{i}.weight"].view(self.convolutions[i][1], -1, self.input_size)
            for i in self._rising
        ]
        taps = range(windows.longest)
        planes = [torch.cat([w[k] for w in weights if k < len(w)]) for k in taps]
        filling = None
        if self.pad_row:
            filling = _filling(tensors["pad"].to(builder.dtype), planes)
        bias = torch.zeros(windows.columns)
        if self.bias:
            bias = torch.cat([tensors[f"convs.{i}.bias"] for i in self._rising])
        layer = ConvolutionLayer(
            linear=builder.linear(torch.cat(planes)),
            windows=windows,
            endings=endings(windows, filling, builder.device),
            # A bias of -0.0 would keep the sign of a zero, which maxima do not.
            bias=builder.exact(builder.put(bias) + 0.0),
            whole=builder.exact(windows.whole().clamp(min=1)),
            activation=_ACTIVATIONS[self.activation],
            order=self._order(builder.device),
        )
        return Stack([layer])

    @property
    def _rising(self) -> list[int]:
        """Numbers of the convolutions, the narrowest first."""
        return sorted(range(len(self.filter_widths)), key=self.filter_widths.__getitem__)

    def _windows(self, column: Callable[[str], int]) -> Windows:
        groups = tuple(Filters(*self.convolutions[i]) for i in self._rising)
        sums = tuple(column(f"0.sums.{taps}") for taps in range(1, groups[-1].width))
        return Windows(groups, self.shortest, sums, column("0.largest"), column("0.steps"))

    def _order(self, device: torch.device) -> Tensor | None:
        """Return the layer's column of each output; None if they are in order."""
        rising = self._rising
        if rising == sorted(rising):
            return None
        counts = [self.convolutions[i][0] for i in rising]
        columns = dict(zip(rising, torch.split(torch.arange(sum(counts)), counts), strict=True))
        return torch.cat([columns[i] for i in sorted(rising)]).to(device)


def _filling(pad: Tensor, planes: Sequence[Tensor]) -> Tensor:
    """Return what rows `pad` add to a window after k of its steps, (longest, filters), float32."""
    filling = torch.zeros(len(planes), len(planes[0]))
    for k in range(len(planes) - 1, -1, -1):
        wide = len(planes[0]) - len(planes[k])
        filling[k, wide:] = planes[k].to(pad.dtype).float() @ pad.float()
        if k + 1 < len(planes):
            filling[k] += filling[k + 1]
    return filling


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
