"""The SRU (Lei et al. 2018) as in `sru` 1.x to 3.0.0.dev, with weights repacked at load."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from sruserve.kernels import Activation, Cell, CellLayer, Norm, NormKind
from sruserve.model.cells.stack import (
    MAX_WIDTH,
    Builder,
    EachLayer,
    Shapes,
    Stack,
    StackConfig,
    Width,
)
from sruserve.model.state import StateLayout

Projection = Annotated[int, Field(ge=0, le=MAX_WIDTH)]


_NORMS = {"layer": NormKind.LAYER, "unbiased": NormKind.UNBIASED, "std": NormKind.STD}


class ResetGate(Enum):
    """The c that the reset gate reads: `previous` in every release, `updated` in Algorithm 1."""

    PREVIOUS = "previous"
    UPDATED = "updated"


class SRUConfig(StackConfig):
    """A stack of SRU layers; fields have the names of `sru.SRU`'s arguments in all releases."""

    family: ClassVar[str] = "sru"
    untrained: ClassVar[tuple[str, ...]] = ("scale_x",)

    hidden_size: Width = Field(description="Features of a layer's output, per direction.")
    projection_size: Projection | Annotated[tuple[Projection, ...], EachLayer] = Field(
        0,
        description="Inner width of a factorised weight; layers that are not wider on both sides "
        "ignore it (2.x). Or a list with one for each layer, 0 for none (3.0).",
    )
    use_tanh: bool = Field(False, description="h takes tanh(c) instead of c.")
    use_relu: bool = Field(False, description="h takes relu(c).")
    use_selu: bool = Field(False, description="h takes selu(c).")
    layer_norm: bool = False
    normalize_after: bool = Field(False, description="Normalize the output, not the input.")
    norm: Literal["layer", "unbiased", "std"] = Field(
        "layer", description="Formula of the norm: 2.1.9 and later, 2.0.0-2.1.7, 1.x."
    )
    has_skip_term: bool = True
    rescale: bool = Field(False, description="Multiply the highway by the stored `scale_x`.")
    proj_input_to_hidden_first: bool = False
    reset_gate: ResetGate = ResetGate.PREVIOUS
    highway_block: bool = Field(
        False, description="Project the highway input even if input and output have one width."
    )
    biased_blocks: bool = Field(False, description="Candidate and highway have biases, too.")
    concat_layers: bool = Field(False, description="The output concatenates those of all layers.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.use_tanh + self.use_relu + self.use_selu > 1:
            raise ValueError("at most one of use_tanh, use_relu and use_selu may be true")
        if isinstance(self.projection_size, tuple) and (
            len(self.projection_size) != self.num_layers
        ):
            raise ValueError(
                f"projection_size lists {len(self.projection_size)} widths for {self.num_layers} "
                "layers"
            )
        if self.highway_block and not self.has_skip_term:
            raise ValueError("highway_block needs has_skip_term: set has_skip_term to true")
        return self

    @property
    def projects_input(self) -> bool:
        return self.proj_input_to_hidden_first and self.input_size != self.layer_output(0)

    @property
    def output_size(self) -> int:
        last = self.layer_output(self.num_layers - 1)
        return last * self.num_layers if self.concat_layers else last

    def layer_input(self, layer: int) -> int:
        if layer == 0 and self.projects_input:
            return self.layer_output(0)
        return super().layer_input(layer)

    def blocks(self, layer: int) -> int:
        """Planes of layer `layer`: candidate, forget, reset, and with 4 the highway input."""
        differ = self.layer_input(layer) != self.layer_output(layer)
        return 4 if self.has_skip_term and (differ or self.highway_block) else 3

    def projection(self, layer: int) -> int:
        """Inner width of layer `layer`'s weight; 0 if it is not factorised."""
        if isinstance(self.projection_size, tuple):
            return self.projection_size[layer]
        narrow = min(self.layer_input(layer), self.layer_output(layer))
        return self.projection_size if self.projection_size < narrow else 0

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        if self.projects_input:
            shapes["input_to_hidden.weight"] = (self.layer_output(0), self.input_size)
        for layer in range(self.num_layers):
            for name, shape in self.layer_shapes(layer).items():
                shapes[f"rnn_lst.{layer}.{name}"] = shape
        return shapes

    def layer_shapes(self, layer: int) -> Shapes:
        """Return the tensors of one layer, with the names and shapes of 2.1.9-2.6.0."""
        inputs, outputs = self.layer_input(layer), self.layer_output(layer)
        projection, columns = self.projection(layer), outputs * self.blocks(layer)
        shapes: Shapes = {}
        if projection:
            shapes["weight_proj"] = (inputs, projection)
        shapes["weight"] = (projection or inputs, columns)
        shapes["weight_c"] = shapes["bias"] = (2 * outputs,)
        if self.biased_blocks:
            shapes["block_bias"] = (columns,)
        shapes["scale_x"] = (1,)
        if self.layer_norm:
            normed = outputs if self.normalize_after else inputs
            shapes["layer_norm.weight"] = shapes["layer_norm.bias"] = (normed,)
        return shapes

    def products(self) -> dict[str, int]:
        first = "input_to_hidden.weight"
        return {name: int(name != first) for name in super().products()}

    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [(f"{i}.c", (self.layer_output(i),)) for i in range(self.num_layers)]

    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        layers = []
        for layer in range(self.num_layers):
            own = {name: tensors[f"rnn_lst.{layer}.{name}"] for name in self.layer_shapes(layer)}
            layers.append(self._layer(own, layout.column(f"{layer}.c"), builder))
        input_projection = None
        if self.projects_input:
            input_projection = builder.linear(tensors["input_to_hidden.weight"])
        return Stack(layers, input_projection, self.concat_layers)

    @property
    def _activation(self) -> Activation:
        if self.use_tanh:
            return Activation.TANH
        if self.use_relu:
            return Activation.RELU
        return Activation.SELU if self.use_selu else Activation.IDENTITY

    def _layer(self, tensors: Mapping[str, Tensor], column: int, builder: Builder) -> CellLayer:
        weight, outputs = tensors["weight"], len(tensors["bias"]) // 2
        # Columns are ordered (direction, channel, block), block fastest; the kernels read planes.
        planes = weight.view(len(weight), outputs, -1).permute(2, 1, 0)
        bias = tensors.get("block_bias")
        if bias is not None:
            bias = bias.view(outputs, -1).T.reshape(-1)
        projection = norm = None
        if "weight_proj" in tensors:
            projection = builder.linear(tensors["weight_proj"].T)
        if self.layer_norm:
            scale, shift = (builder.put(tensors[f"layer_norm.{n}"]) for n in ("weight", "bias"))
            norm = Norm(scale, shift, _NORMS[self.norm])
        cell = Cell(
            blocks=len(planes),
            activation=self._activation,
            updated_reset=self.reset_gate is ResetGate.UPDATED,
            scale=float(tensors["scale_x"]) if self.rescale else 1.0,
        )
        return CellLayer(
            linear=builder.linear(planes.reshape(-1, len(weight)), bias),
            cell=cell,
            weight_c=builder.exact(tensors["weight_c"].view(2, outputs)),
            bias=builder.exact(tensors["bias"].view(2, outputs)),
            column=column,
            projection=projection,
            norm=norm,
            norm_after=self.normalize_after,
            highway_is_input=self.has_skip_term and len(planes) == 3,
            backward_from=self.hidden_size if self.bidirectional else None,
            fast=builder.fast,
        )
