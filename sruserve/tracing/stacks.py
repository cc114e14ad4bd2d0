"""The stack of a model folder from live recurrent modules: config and tensors."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from sruserve.model.cells.gated import GRUConfig, LSTMConfig, RNNConfig
from sruserve.model.cells.stack import StackConfig
from sruserve.model.importers import qrnn, srupp
from sruserve.model.importers.lrn_cells import CELLS, kind_of
from sruserve.model.importers.options import make
from sruserve.model.importers.sru_release import eras_of
from sruserve.model.importers.sru_stack import read_stack
from sruserve.model.importers.tensors import NUMBER, layers_of
from sruserve.tracing.errors import TracingError
from sruserve.tracing.stages import Stage

Stack = tuple[dict[str, Tensor], StackConfig]
_KINDS: dict[type[nn.Module], type[LSTMConfig | GRUConfig | RNNConfig]]
_KINDS = {nn.LSTM: LSTMConfig, nn.GRU: GRUConfig, nn.RNN: RNNConfig}


def stack_of(stages: Sequence[Stage]) -> Stack:
    """Return tensors and config of modules that follow each other, as one stack.

    Raises `TracingError` if one stack cannot be all of them, and `ModelError` for a module that no
    import can read.
    """
    first = stages[0]
    kinds = {(stage.family, stage.directions, type(stage.module).__name__) for stage in stages}
    if len(kinds) > 1:
        names = " and ".join(str(stage.module).partition("\n")[0] for stage in stages)
        raise TracingError(f"{names} are of different kinds, so they cannot be one stack")
    if len(stages) > 1 and first.family in ("srupp", "lrn", "qrnn"):
        raise TracingError(f"several {type(first.module).__name__} modules cannot be one stack")
    modules = [stage.module for stage in stages]
    if first.family == "torch":
        return _torch(cast("list[nn.LSTM | nn.GRU | nn.RNN]", modules))
    if first.family == "sru":
        return _sru(modules)
    module = modules[0]
    tensors = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    if first.family == "qrnn":
        return _qrnn(module, tensors)
    if first.family == "lrn":
        layers = layers_of(tensors, rf"cell_{NUMBER}\.")
        return CELLS[kind_of(layers[0])](layers, {})
    return _srupp(module, tensors)


def _torch(modules: Sequence[nn.LSTM | nn.GRU | nn.RNN]) -> Stack:
    """Join modules of torch; their layers may have different widths."""
    first = modules[0]
    tensors: dict[str, Tensor] = {}
    bias = any(module.bias for module in modules)
    widths: list[int] = []
    for module in modules:
        for layer in range(module.num_layers):
            for direction in ("", "_reverse")[: 1 + module.bidirectional]:
                theirs, ours = f"_l{layer}{direction}", f"_l{len(widths)}{direction}"
                names = ["weight_ih", "weight_hh", *(["weight_hr"] if module.proj_size else [])]
                names += ["bias_ih", "bias_hh"] if module.bias else []
                own = {name: getattr(module, name + theirs).detach() for name in names}
                if bias and not module.bias:
                    zeros = own["weight_ih"].new_zeros(len(own["weight_ih"]))
                    own |= {"bias_ih": zeros, "bias_hh": zeros.clone()}
                tensors |= {f"rnn.{name}{ours}": tensor for name, tensor in own.items()}
            widths.append(module.hidden_size)
    fields: dict[str, Any] = {
        "input_size": first.input_size,
        "hidden_size": widths[0] if len(set(widths)) == 1 else tuple(widths),
        "num_layers": len(widths),
        "bias": bias,
        "bidirectional": first.bidirectional,
    }
    for name in ("proj_size", "nonlinearity"):
        values = {getattr(module, name, None) for module in modules}
        if len(values) > 1:
            raise TracingError(f"recurrent modules with different {name} cannot be one stack")
        if name == ("proj_size" if isinstance(first, nn.LSTM) else "nonlinearity") and any(values):
            fields[name] = values.pop()
    kind = next(kind for base, kind in _KINDS.items() if isinstance(first, base))
    return tensors, make(kind, fields)


def _sru(modules: Sequence[nn.Module]) -> Stack:
    """Join modules of `sru`; their attributes are the arguments of their constructors."""
    layers: list[Mapping[str, Tensor]] = []
    norms: list[Mapping[str, Tensor]] = []
    into: Tensor | None = None
    options: dict[str, Any] | None = None
    for i, module in enumerate(modules):
        tensors = {name: tensor.detach() for name, tensor in module.state_dict().items()}
        layers += layers_of(tensors, rf"rnn_lst\.{NUMBER}\.")
        norms += layers_of(tensors, rf"ln_lst\.{NUMBER}\.")
        if "input_to_hidden.weight" in tensors:
            if i:
                raise TracingError("only the first of several modules of sru may project its input")
            into = tensors["input_to_hidden.weight"]
        own = _sru_options(module, {name for layer in layers for name in layer})
        if options is not None and own != options:
            raise TracingError("modules of sru with different options cannot be one stack")
        options = own
    return read_stack(layers, norms, into, options)


def _sru_options(module: nn.Module, names: set[str]) -> dict[str, Any]:
    """Return the constructor's arguments that the weights do not show."""
    cell = cast("Any", module).rnn_lst[0]
    activation = ("", "use_tanh", "use_relu", "use_selu")[int(getattr(cell, "activation_type", 0))]
    options: dict[str, Any] = {
        "bidirectional": bool(cell.bidirectional),
        "has_skip_term": bool(getattr(cell, "has_skip_term", True)),
        "rescale": bool(getattr(cell, "rescale", False)),
    }
    if activation:
        options[activation] = True
    if getattr(cell, "layer_norm", None) is not None and hasattr(cell, "normalize_after"):
        options["normalize_after"] = bool(cell.normalize_after)
    if (release := _release(module)) and len(eras_of(names)) > 1:
        options["release"] = release
    return options


def _release(module: nn.Module) -> str | None:
    """Return the release of the library that a module is from, as far as it shows."""
    library = sys.modules.get(type(module).__module__.partition(".")[0])
    version = getattr(library, "__version__", None)
    if isinstance(version, str) and hasattr(library, "SRU"):
        return version
    cell = cast("Any", module).rnn_lst[0]
    if hasattr(cell, "transform_module"):
        return "3.0.0"
    if hasattr(module, "input_to_hidden") or hasattr(cell, "num_matrices"):
        return "2.6.0"
    return None


def _srupp(module: nn.Module, tensors: dict[str, Tensor]) -> Stack:
    layer: Any = cast("Any", module).rnn_lst[0]
    attends = [each for each in cast("Any", module).rnn_lst if _attends(each)]
    transform = attends[0].transform_module if attends else layer.transform_module
    inner = getattr(transform, "layer_norm", None) is not None
    outer = getattr(layer, "layer_norm", None) is not None
    options: dict[str, Any] = {
        "bidirectional": bool(layer.bidirectional),
        "window": None,
        "num_heads": int(getattr(transform, "num_heads", 1)),
        "attn_layer_norm": inner,
        "layer_norm": outer,
    }
    if outer:
        options["normalize_after"] = bool(layer.normalize_after)
    elif inner and not getattr(transform, "normalize_after", True):
        options |= {"layer_norm": True, "normalize_after": False}
    imported = srupp.read(tensors, options, "encode")
    return imported.tensors, imported.rnn


def _attends(layer: nn.Module) -> bool:
    return hasattr(getattr(layer, "transform_module", None), "linear3")


def _qrnn(module: nn.Module, tensors: dict[str, Tensor]) -> Stack:
    own: Any = module
    layers = layers_of(tensors, rf"layers\.{NUMBER}\.linear\.")
    gates = {bool(layer.output_gate) for layer in own.layers}
    zoneouts = {float(layer.zoneout or 0) for layer in own.layers}
    if len(gates) > 1 or len(zoneouts) > 1:
        raise TracingError("QRNN layers with different output_gate or zoneout cannot be one stack")
    windows = [layer.window for layer in own.layers]
    return qrnn.stack(layers, windows, gates.pop(), zoneouts.pop())
