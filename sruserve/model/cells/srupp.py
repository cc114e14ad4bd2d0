"""SRU++ (Lei 2021) as in `sru` 3.0.0.dev1 to dev6: SRU layers that may attend to the past."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from sruserve.kernels import Cell, CellLayer, Norm
from sruserve.kernels.attention import Attention
from sruserve.kernels.srupp import SRUppLayer
from sruserve.model.cells.stack import Builder, Shapes, Stack, StackConfig, Width
from sruserve.model.state import StateLayout


class SRUppConfig(StackConfig):
    """A stack of SRU++ layers; fields are named as in `sru.SRUpp` 3.0.0.dev6 where it has them."""

    family: ClassVar[str] = "srupp"
    untrained: ClassVar[tuple[str, ...]] = ("scale_x",)
    other_kernels: ClassVar[bool] = True

    hidden_size: Width = Field(description="Features of a layer's output, per direction.")
    proj_size: Width = Field(description="Features of the attention.")
    window: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description="Number of positions before its own that a step attends to: the reference's "
        "eval_unroll_size. null: the whole input, also later positions.",
    )
    num_heads: PositiveInt = 1
    attention_every_n_layers: PositiveInt = 1
    attention_last_n_layers: int = Field(
        -1, ge=-1, description="-1: attention_every_n_layers applies instead."
    )
    alpha: bool = Field(True, description="A trained factor on attention (not in dev4 and dev5).")
    attn_layer_norm: bool = Field(True, description="A norm before or after the attention.")
    attn_normalize_after: bool = Field(
        True, description="That norm is after the attention, not before (dev1 and dev2 have both)."
    )
    layer_norm: bool = Field(False, description="A norm of each layer's input or output.")
    normalize_after: bool = Field(False, description="Normalize the output, not the input.")
    rescale: bool = Field(False, description="Multiply the highway by the stored `scale_x`.")
    proj_input_to_hidden_first: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.proj_size % self.num_heads:
            raise ValueError(
                f"proj_size ({self.proj_size}) must be a multiple of num_heads ({self.num_heads})"
            )
        if self.attention_every_n_layers != 1 and self.attention_last_n_layers != -1:
            raise ValueError("set attention_every_n_layers or attention_last_n_layers, not both")
        if self.bidirectional and self.window is not None:
            raise ValueError(
                "a bidirectional network attends to its whole input: window must be null"
            )
        return self

    @property
    def prefers_cpu(self) -> bool:
        return True  # no GPU has timed it

    @property
    def projects_input(self) -> bool:
        return self.proj_input_to_hidden_first and self.input_size != self.output_size

    @property
    def not_streamable_because(self) -> str | None:
        attends = any(self.attends(layer) for layer in range(self.num_layers))
        if super().not_streamable_because is None and attends and self.window is None:
            return "its attention has no window, so its outputs depend on the whole input"
        return super().not_streamable_because

    @property
    def note(self) -> str | None:
        if not any(self.chunked(layer) for layer in range(self.num_layers)):
            return None
        return (
            f"results equal those of the reference with chunks of {self.window} positions from the "
            "start of a stream: it does not normalize its memory of the previous chunk"
        )

    def attends(self, layer: int) -> bool:
        """Whether layer `layer` has attention."""
        if self.attention_last_n_layers != -1:
            return self.num_layers - layer <= self.attention_last_n_layers
        return (layer + 1) % self.attention_every_n_layers == 0

    def chunked(self, layer: int) -> bool:
        """Whether the outputs of layer `layer` depend on where the reference cuts its input."""
        normed = self.layer_norm and not self.normalize_after
        return self.attends(layer) and normed and self.window is not None

    def layer_input(self, layer: int) -> int:
        if layer == 0 and self.projects_input:
            return self.output_size
        return super().layer_input(layer)

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        if self.projects_input:
            shapes["input_to_hidden.weight"] = (self.output_size, self.input_size)
        for layer in range(self.num_layers):
            for name, shape in self.layer_shapes(layer).items():
                shapes[f"rnn_lst.{layer}.{name}"] = shape
        return shapes

    def layer_shapes(self, layer: int) -> Shapes:
        """Return the tensors of one layer, with the releases' names and shapes."""
        inputs, outputs, inner = self.layer_input(layer), self.output_size, self.proj_size
        wide = (outputs * (3 if inputs == outputs else 4), inner)
        module: Shapes = {"linear1.weight": (inner, inputs)}
        if self.attends(layer):
            module |= {"linear2.weight": (2 * inner, inner), "linear3.weight": wide}
            if self.alpha:
                module["alpha"] = (1,)
        else:
            module["linear2.weight"] = wide
        if self.attn_layer_norm:
            module["layer_norm.weight"] = module["layer_norm.bias"] = (inner,)
        shapes: Shapes = {f"transform_module.{name}": shape for name, shape in module.items()}
        shapes["weight_c"] = shapes["bias"] = (2 * outputs,)
        shapes["scale_x"] = (1,)
        if self.layer_norm:
            normed = outputs if self.normalize_after else inputs
            shapes["layer_norm.weight"] = shapes["layer_norm.bias"] = (normed,)
        return shapes

    def states(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        states: list[tuple[str, tuple[int, ...]]] = []
        for i in range(self.num_layers):
            states.append((f"{i}.c", (self.output_size,)))
            if self.attends(i) and self.window is not None:
                depth = (4 if self.chunked(i) else 2) * self.proj_size
                states += [(f"{i}.ring", (self.window, depth)), (f"{i}.at", (1,))]
        return states

    def stack(self, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder) -> Stack:
        layers = []
        for layer in range(self.num_layers):
            own = {name: tensors[f"rnn_lst.{layer}.{name}"] for name in self.layer_shapes(layer)}
            layers.append(self._layer(layer, own, layout, builder))
        input_projection = None
        if self.projects_input:
            input_projection = builder.linear(tensors["input_to_hidden.weight"])
        return Stack(layers, input_projection)

    def _layer(
        self, layer: int, tensors: Mapping[str, Tensor], layout: StateLayout, builder: Builder
    ) -> SRUppLayer:
        module = "transform_module."
        attention = keys_values = None
        if self.attends(layer):
            attention = Attention(
                window=self.window,
                heads=self.num_heads,
                alpha=float(tensors[f"{module}alpha"]) if self.alpha else 1.0,
                column=0 if self.window is None else layout.column(f"{layer}.ring"),
            )
            keys_values = builder.linear(tensors[f"{module}linear2.weight"])
        wide = tensors[f"{module}linear{2 if attention is None else 3}.weight"]
        norm = _norm(tensors, "", builder)
        return SRUppLayer(
            narrow=builder.linear(tensors[f"{module}linear1.weight"]),
            cell=self._cell(tensors, wide, layout.column(f"{layer}.c"), builder),
            keys_values=keys_values,
            attention=attention,
            norm=None if self.normalize_after else norm,
            inner_norm=_norm(tensors, module, builder),
            norm_before=not self.attn_normalize_after,
        )

    def _cell(
        self, tensors: Mapping[str, Tensor], wide: Tensor, column: int, builder: Builder
    ) -> CellLayer:
        outputs = self.output_size
        # Rows are ordered (direction, channel, block), block fastest; the kernels read planes.
        planes = wide.view(outputs, -1, self.proj_size).transpose(0, 1)
        scale = float(tensors["scale_x"]) if self.rescale else 1.0
        return CellLayer(
            linear=builder.linear(planes.reshape(-1, self.proj_size)),
            cell=Cell(blocks=len(planes), scale=scale),
            column=column,
            weight_c=builder.exact(tensors["weight_c"].view(2, outputs)),
            bias=builder.exact(tensors["bias"].view(2, outputs)),
            norm=_norm(tensors, "", builder) if self.normalize_after else None,
            norm_after=True,
            highway_is_input=len(planes) == 3,
            backward_from=self.hidden_size if self.bidirectional else None,
            fast=builder.fast,
        )


def _norm(tensors: Mapping[str, Tensor], module: str, builder: Builder) -> Norm | None:
    """Build the norm of a layer, or of its module; None without one."""
    if f"{module}layer_norm.weight" not in tensors:
        return None
    weight, bias = (tensors[f"{module}layer_norm.{name}"] for name in ("weight", "bias"))
    return Norm(builder.put(weight), builder.put(bias))
