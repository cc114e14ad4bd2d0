"""Operations on each number by itself that need nothing else: activations, dropout, casts."""

from dataclasses import replace
from typing import Any

from sruserve.model.importers.wiring.layers import Activation, Softmax, scale
from sruserve.tracing.errors import Unserved
from sruserve.tracing.table import Site, handles, placed, rows
from sruserve.tracing.values import Constant, Value


@handles("relu", "tanh", "sigmoid", "silu")
def plain(site: Site, x: Value, inplace: bool = False) -> Value:
    del inplace
    return rows(x).then(Activation(site.operation.name))


@handles("gelu")
def gelu(site: Site, x: Value, approximate: str = "none") -> Value:
    del site
    return rows(x).then(Activation("gelu" if approximate == "none" else "gelu_tanh"))


@handles("softplus")
def softplus(site: Site, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    del site
    if beta != 1 or threshold < 20:
        raise Unserved("has a beta or threshold of its own")
    return rows(x).then(Activation("softplus"))


@handles("leaky_relu")
def leaky_relu(site: Site, x: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    del site, inplace
    return rows(x).then(Activation("leaky_relu", negative_slope))


@handles("elu")
def elu(site: Site, x: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    del site, inplace
    return rows(x).then(Activation("elu", alpha))


@handles("selu")
def selu(site: Site, x: Value, inplace: bool = False) -> Value:
    """A scaled elu, with the constants of Klambauer et al. 2017, as in torch."""
    del site, inplace
    return rows(x).then(Activation("elu", 1.6732632423543772)).then(scale(1.0507009873554805))


@handles("prelu")
def prelu(site: Site, x: Value, weight: Value) -> Value:
    del site
    if not isinstance(weight, Constant) or (slope := weight.both()).numel() != 1:
        raise Unserved("has a slope for each feature; one slope for all can be served")
    return rows(x).then(Activation("leaky_relu", slope.item()))


@handles("dropout", "dropout1d", "dropout2d", "alpha_dropout", "feature_alpha_dropout")
def dropout(site: Site, x: Value, p: float = 0.5, training: bool | None = None, **_: Any) -> Value:
    """Nothing in evaluation; but the functions of `torch.nn.functional` drop by default."""
    if training is None:
        training = "alpha" not in site.operation.name
    if training and p:
        raise Unserved("drops numbers at random in evaluation, too: pass training=self.training")
    return placed(x)


@handles("contiguous", "clone", "detach", "data", "cpu", "cuda", "alias", "requires_grad")
def same(site: Site, x: Value, *_: Any, **__: Any) -> Value:
    del site
    return placed(x)


@handles("to", "type", "float", "long", "int", "type_as")
def cast(site: Site, x: Value, *_: Any, **__: Any) -> Value:
    """Keep the meaning; a loss of digits would show in the comparison of answers."""
    del site
    return placed(x)


@handles("log")
def log(site: Site, x: Value) -> Value:
    del site
    x = rows(x)
    if x.layers and isinstance(last := x.layers[-1], Softmax) and not last.log:
        return replace(x, layers=(*x.layers[:-1], Softmax(True)))
    raise Unserved("cannot be served")


@handles("neg", "__neg__", "negative")
def neg(site: Site, x: Value) -> Value:
    del site
    return rows(x).then(scale(-1.0))
