"""Recurrent systems of OpenNMT-py (1.x, 2.x): `encoder.*`, `decoder.*` and `generator.*`."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from sruserve.model.cells.gated import GatedConfig, GRUConfig, LSTMConfig, RNNConfig
from sruserve.model.cells.stack import StackConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Options
from sruserve.model.importers.options import flag, known, make, shown
from sruserve.model.importers.sru_stack import read_stack
from sruserve.model.importers.tensors import MISFIT, NUMBER, floats, layers_of, need
from sruserve.model.importers.translation.format import (
    ImportedSystem,
    make_system,
    without_equal,
)
from sruserve.model.translation.recurrent_config import RecurrentConfig

_TABLE = "embeddings.make_embedding.emb_luts.0.weight"
_GENERATOR = ("generator.0.", "generator.")
_OPTIONS = {"global_attention_function", "generator_function", "bridge", "max_source", "max_target"}
# What a checkpoint's tensors say by themselves, and what matters in training alone.
_WITHOUT = "import a system that was trained without it"
_SHOWN = {
    *("rnn_type", "encoder_type", "decoder_type", "brnn", "layers", "enc_layers", "dec_layers"),
    *("rnn_size", "enc_rnn_size", "dec_rnn_size", "hidden_size", "enc_hid_size", "dec_hid_size"),
    *("word_vec_size", "src_word_vec_size", "tgt_word_vec_size", "input_feed"),
    *("global_attention", "share_embeddings", "share_decoder_embeddings", "dropout", "model_type"),
    *("copy_attn", "coverage_attn", "context_gate", "attention_dropout", "heads"),
}
_REFUSED = {
    "decoder.copy_attn.": "copy attention",
    "generator.linear_copy.": "copy attention",
    "decoder.attn.linear_cover.": "coverage",
    "decoder.context_gate.": "a context gate",
    "encoder.bridge.": "a bridge, whose results depend on the other sources of a batch",
    "encoder.embeddings.make_embedding.emb_luts.1.": "features beside the source's words",
    "decoder.embeddings.make_embedding.emb_luts.1.": "features beside the target's words",
    "encoder.embeddings.make_embedding.mlp.": "features beside the source's words",
    "encoder.embeddings.make_embedding.pe.": "positions in the embeddings",
    "decoder.embeddings.make_embedding.pe.": "positions in the embeddings",
    "encoder.transformer.": "a Transformer's encoder, which has no recurrent layer",
    "decoder.transformer_layers.": "a Transformer's decoder, which has no recurrent layer",
    "encoder.cnn.": "a convolutional encoder",
    "encoder.rnn_": "an encoder of audio or images",
}


def recognises(names: Collection[str]) -> bool:
    """Whether there are OpenNMT-py's embeddings."""
    return any(name == f"decoder.{_TABLE}" for name in names)


def read(tensors: Mapping[str, Tensor], options: Options) -> ImportedSystem:
    """See `TranslationFormat`."""
    arguments = known(options, _OPTIONS, _SHOWN)
    _refuse(tensors, arguments, options)
    theirs = floats(tensors)
    own: dict[str, Tensor] = {"target_embedding.weight": _take(theirs, f"decoder.{_TABLE}")}
    own["source_embedding.weight"] = _take(theirs, f"encoder.{_TABLE}")
    generator = next((g for g in _GENERATOR if f"{g}weight" in theirs), _GENERATOR[0])
    own["output.weight"] = _take(theirs, f"{generator}weight")
    if f"{generator}bias" in theirs:
        own["output.bias"] = theirs.pop(f"{generator}bias")
    encoder, kind = _stack(theirs, "encoder.rnn.", options.get("encoder_type"))
    decoder, decoder_kind = _stack(theirs, "decoder.rnn.", "rnn")
    attention = _attention(theirs, own)
    if theirs:
        raise CheckpointError(
            f"{', '.join(sorted(theirs))[:200]}: these tensors belong to no part of a recurrent "
            "encoder and decoder: remove them, or choose another --format"
        )
    if kind.family != decoder_kind.family:
        raise CheckpointError(
            f"the encoder's layers are {kind.family}, but the decoder's {decoder_kind.family}: "
            "import a system with one --rnn_type"
        )
    own |= {f"encoder.{name}": tensor for name, tensor in encoder.items()}
    own |= {f"decoder.{name}": tensor for name, tensor in decoder.items()}
    source_size, (target_size, target_width) = (
        len(own["source_embedding.weight"]),
        own["target_embedding.weight"].shape,
    )
    fields: dict[str, Any] = {
        "family": kind.family,
        "encoder": kind,
        "decoder": decoder_kind,
        "source_embedding_size": own["source_embedding.weight"].shape[1],
        "target_embedding_size": target_width,
        "attention": attention,
        "input_feed": decoder_kind.input_size != target_width,
        "shared_embeddings": without_equal(
            own, "source_embedding.weight", "target_embedding.weight"
        ),
        "tied_output": without_equal(own, "output.weight", "target_embedding.weight"),
        "output_bias": "output.bias" in own,
        **{name: arguments[name] for name in ("max_source", "max_target") if name in arguments},
    }
    return ImportedSystem(own, make_system(RecurrentConfig, fields), source_size, target_size)


def _refuse(tensors: Mapping[str, Tensor], arguments: Options, options: Options) -> None:
    """Raise `CheckpointError` or `OptionError` that names a part which is not reproduced."""
    for prefix, what in _REFUSED.items():
        if unserved := next((name for name in tensors if name.startswith(prefix)), None):
            raise CheckpointError(
                f"{unserved[:80]}: the system has {what}, which is not served: {_WITHOUT}"
            )
    for name in ("global_attention_function", "generator_function"):
        if arguments.get(name, "softmax") not in ("softmax", "log_softmax"):
            raise OptionError(
                f"--options: {name} is {shown(arguments[name])}; softmax is served: {_WITHOUT}"
            )
    for name in ("copy_attn", "coverage_attn", "bridge"):
        if flag(options, name, False):
            raise OptionError(f"--options: {name} is true, which is not served: {_WITHOUT}")
    if options.get("context_gate") is not None:
        raise OptionError(f"--options: context_gate is set, which is not served: {_WITHOUT}")


def _take(tensors: dict[str, Tensor], name: str) -> Tensor:
    """Remove a matrix and return it."""
    need(tensors, name, 2)
    return tensors.pop(name)


def _stack(
    tensors: dict[str, Tensor], prefix: str, encoder_type: object
) -> tuple[dict[str, Tensor], StackConfig]:
    """Remove the layers of one side; return them with a folder's names, and their config.

    encoder_type: "brnn" for both directions; only the weights of an SRU do not show it.
    """
    part = {k.removeprefix(prefix): tensors.pop(k) for k in list(tensors) if k.startswith(prefix)}
    if any(name.startswith("rnn_lst.") for name in part):
        if encoder_type not in ("rnn", "brnn"):
            raise OptionError(
                '"encoder_type" is not stored in the weights of an SRU: pass "rnn" or "brnn" in '
                "--options"
            )
        return _sru(layers_of(part, rf"rnn_lst\.{NUMBER}\."), encoder_type == "brnn")
    cells = layers_of(part, rf"layers\.{NUMBER}\.")
    if cells:  # one cell a layer, as input feeding needs
        part = {f"{name}_l{i}": t for i, cell in enumerate(cells) for name, t in cell.items()}
    rows, hidden = need(part, "weight_hh_l0", 2, prefix).shape
    kinds: dict[int, type[GatedConfig]]
    kinds = {4 * hidden: LSTMConfig, 3 * hidden: GRUConfig, hidden: RNNConfig}
    if (kind := kinds.get(rows)) is None:
        raise CheckpointError(
            f"{prefix}weight_hh_l0 has shape {[rows, hidden]}; an LSTM has 4 rows per column, a "
            f"GRU 3, an RNN 1: {MISFIT}"
        )
    config = make(
        kind,
        {
            "input_size": need(part, "weight_ih_l0", 2, prefix).shape[1],
            "hidden_size": hidden,
            "num_layers": sum(
                re.fullmatch(r"weight_hh_l[0-9]+", name) is not None for name in part
            ),
            "bias": "bias_ih_l0" in part,
            "bidirectional": "weight_hh_l0_reverse" in part,
        },
    )
    return part, config


def _sru(layers: list[dict[str, Tensor]], both: bool) -> tuple[dict[str, Tensor], StackConfig]:
    """Convert layers of OpenNMT-py's own SRU, which is that of 2017 with tanh."""
    options = {"release": "2017", "use_tanh": True, "bidirectional": both}
    tensors, config = read_stack(layers, [], None, options)
    return {name.removeprefix("rnn."): tensor for name, tensor in tensors.items()}, config


def _attention(tensors: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """Move the attention's tensors to `own`; return its kind."""
    prefix = "decoder.attn."
    part = {k.removeprefix(prefix): tensors.pop(k) for k in list(tensors) if k.startswith(prefix)}
    own |= {f"attention.{name}": tensor for name, tensor in part.items()}
    if not part:
        return "none"
    if "linear_query.weight" in part:
        return "mlp"
    return "general" if "linear_in.weight" in part else "dot"
