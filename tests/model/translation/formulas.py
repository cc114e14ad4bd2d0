"""Translation systems in plain torch, step by step: the log-probabilities of a forced target."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sruserve.model.translation.recurrent_config import RecurrentConfig
from sruserve.model.translation.transformer_config import TransformerSRUConfig

State = tuple[Tensor, ...]
"""What a layer remembers: (width) each."""


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def sru_step(
    own: Mapping[str, Tensor], x: Tensor, c: Tensor, at: slice, tanh: bool, skip: bool
) -> tuple[Tensor, State]:
    """One step of a direction of an SRU layer (Lei et al. 2018). at: its features."""
    width = len(own["bias"]) // 2
    normed = x
    if "layer_norm.weight" in own:
        normed = functional.layer_norm(x, x.shape, own["layer_norm.weight"], own["layer_norm.bias"])
    u = (normed @ own["weight"]).view(width, -1)[at]
    v, b = own["weight_c"].view(2, width)[:, at], own["bias"].view(2, width)[:, at]
    f = torch.sigmoid(u[:, 1] + v[0] * c + b[0])
    r = torch.sigmoid(u[:, 2] + v[1] * c + b[1])
    c = f * c + (1 - f) * u[:, 0]
    h = r * (c.tanh() if tanh else c)
    if skip:
        h = h + (1 - r) * (u[:, 3] if u.shape[1] == 4 else x[at])
    return h, (c,)


def step(
    family: str, own: Mapping[str, Tensor], layer: int, at: slice, back: bool,
    x: Tensor, state: State,
) -> tuple[Tensor, State]:  # fmt: skip
    """One step of a direction of a layer: its output and what it remembers."""
    if family == "sru":
        return sru_step(below(own, f"rnn_lst.{layer}."), x, state[0], at, False, True)
    if family == "lrn":
        weight, bias = own[f"layers.{layer}.weight"], own[f"layers.{layer}.bias"]
        p, q, r = ((x @ weight + bias).view(3, -1))[:, at]
        (h,) = state
        h = torch.tanh(torch.sigmoid(p + h) * r + torch.sigmoid(q - h) * h)
        return h, (h,)
    if family == "qrnn":
        linear = below(own, f"layers.{layer}.linear.")
        z, f, o = (linear["weight"] @ x + linear["bias"]).chunk(3)
        c = f.sigmoid() * z.tanh() + (1 - f.sigmoid()) * state[0]
        return o.sigmoid() * c, (c,)
    end = f"_l{layer}" + ("_reverse" if back else "")
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, v, b, d = (own[f"{name}{end}"] for name in names)
    row, *held = x[None], *(part[None] for part in state)
    if family == "lstm":
        h, c = torch.lstm_cell(row, held, w, v, b, d)
        return h[0], (h[0], c[0])
    if family == "atr":
        p, q = x @ w.T + b, state[0] @ v.T + d
        h = torch.tanh(torch.sigmoid(p + q) * p + torch.sigmoid(p - q) * state[0])
        return h, (h,)
    cell = torch.gru_cell if family == "gru" else torch.rnn_tanh_cell
    h = cell(row, held[0], w, v, b, d)[0]
    return h, (h,)


def zeros(family: str, width: int) -> State:
    return (torch.zeros(width),) * (2 if family == "lstm" else 1)


def recurrent(
    config: RecurrentConfig, tensors: Mapping[str, Tensor], source: Tensor, target: Tensor
) -> Tensor:
    """The log-probabilities after each id of the target, (steps, ids) (Luong et al. 2015)."""
    family, own = config.family, below(tensors, "encoder.")
    embedding = tensors["target_embedding.weight"]
    x = tensors.get("source_embedding.weight", embedding)[source]
    states: list[State] = []
    for layer in range(config.encoder.num_layers):
        width = config.encoder.layer_hidden(layer)
        outputs, ends = [], []
        for direction in range(2 if config.encoder.bidirectional else 1):
            at, state = slice(direction * width, (direction + 1) * width), zeros(family, width)
            hidden = [torch.zeros(0)] * len(x)
            for t in reversed(range(len(x))) if direction else range(len(x)):
                hidden[t], state = step(family, own, layer, at, bool(direction), x[t], state)
            outputs.append(torch.stack(hidden))
            ends.append(state)
        x = torch.cat(outputs, 1)
        states.append(tuple(torch.cat(parts) for parts in zip(*ends, strict=True)))
    width, own, attention = (
        config.hidden_width,
        below(tensors, "decoder."),
        below(tensors, "attention."),
    )
    if not config.encoder_starts_decoder:
        states = [zeros(family, width) for _ in range(config.decoder.num_layers)]
    fed, rows = torch.zeros(width), []
    for token in target:
        hidden_t = embedding[token]
        if config.input_feed:
            hidden_t = torch.cat([hidden_t, fed])
        for layer in range(config.decoder.num_layers):
            hidden_t, states[layer] = step(
                family, own, layer, slice(0, width), False, hidden_t, states[layer]
            )
        fed = attended(config.attention, attention, x, hidden_t)
        rows.append(fed)
    return log_probabilities(tensors, torch.stack(rows))


def attended(kind: str, own: Mapping[str, Tensor], memory: Tensor, h: Tensor) -> Tensor:
    """h̃ of a decoder's output h (Luong et al. 2015; Bahdanau et al. 2015)."""
    if kind == "none":
        return h
    if kind == "mlp":
        query = own["linear_query.weight"] @ h + own["linear_query.bias"]
        keys = memory @ own["linear_context.weight"].T
        scores = torch.tanh(keys + query) @ own["v.weight"][0]
    else:
        scores = memory @ (own["linear_in.weight"] @ h if kind == "general" else h)
    mixed = own["linear_out.weight"] @ torch.cat([scores.softmax(0) @ memory, h])
    return mixed + own["linear_out.bias"] if kind == "mlp" else mixed.tanh()


def log_probabilities(tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    weight = tensors.get("output.weight", tensors["target_embedding.weight"])
    return (hidden @ weight.T + tensors.get("output.bias", torch.zeros(1))).log_softmax(1)


def transformer(
    config: TransformerSRUConfig, tensors: Mapping[str, Tensor], source: Tensor, target: Tensor
) -> Tensor:
    """The log-probabilities after each id of the target, (steps, ids) (Lei et al. 2018, 4.3)."""
    starts: list[Tensor | None] = [None] * config.num_decoder_layers
    x, ends = _side(config, tensors, "encoder", source, None, [None] * config.num_encoder_layers)
    if config.encoder_starts_decoder:
        starts = list(ends)
    return log_probabilities(tensors, _side(config, tensors, "decoder", target, x, starts)[0])


def _side(
    config: TransformerSRUConfig, tensors: Mapping[str, Tensor], side: str, ids: Tensor,
    memory: Tensor | None, starts: list[Tensor | None],
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The outputs of encoder or decoder, (ids, d_model), and the end states of its SRUs."""
    own, name = below(tensors, f"{side}."), "source" if side == "encoder" else "target"
    table = tensors.get(f"{name}_embedding.weight", tensors["target_embedding.weight"])
    x = table[ids] * config.embedding_scale
    if config.positions == "learned":
        x = x + tensors[f"{name}_positions.weight"][: len(ids)]
    elif config.positions == "sinusoidal":
        half = torch.arange(0, x.shape[1], 2) / x.shape[1]
        angles = torch.arange(len(ids))[:, None] / 10000**half
        x = x + torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, : x.shape[1]]
    if "proj.weight" in own:
        x = functional.linear(x, own["proj.weight"], own["proj.bias"])
    ends: list[Tensor] = []
    for number, start in enumerate(starts):
        layer = below(own, f"layers.{number}.")
        changes: list[Any] = [lambda z, p=layer: _attention(config, p, "self_attn", z, None)]
        if memory is not None:
            mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)
            changes = [
                lambda z, p=layer, m=mask: _attention(config, p, "self_attn", z, None, m),
                lambda z, p=layer, s=memory: _attention(config, p, "multihead_attn", z, s),
            ]
        both = side == "encoder" and config.bidirectional_encoder
        changes.append(lambda z, p=layer, c=start, b=both: _feed_forward(config, p, z, c, b, ends))
        for sublayer, change in enumerate(changes):
            norm = below(layer, f"norm{sublayer + 1}.")
            first = config.norm_first
            x = x + change(_normed(norm, x)) if first else _normed(norm, x + change(x))
    return _normed(below(own, "norm."), x) if config.norm_first else x, ends


def _normed(norm: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[1:], norm["weight"], norm["bias"])


def _attention(
    config: TransformerSRUConfig, layer: Mapping[str, Tensor], name: str, x: Tensor,
    memory: Tensor | None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    own, keys = below(layer, f"{name}."), x if memory is None else memory
    mixed, _ = functional.multi_head_attention_forward(
        x[:, None], keys[:, None], keys[:, None], config.d_model, config.nhead,
        own["in_proj_weight"], own["in_proj_bias"], None, None, False, 0.0,
        own["out_proj.weight"], own["out_proj.bias"], training=False, attn_mask=mask,
    )  # fmt: skip
    return mixed[:, 0]


def _feed_forward(
    config: TransformerSRUConfig, layer: Mapping[str, Tensor], x: Tensor, start: Tensor | None,
    both: bool, ends: list[Tensor],
) -> Tensor:  # fmt: skip
    """The SRU layer and its linear layer; adds the last state to `ends`."""
    sru, own = config.sru, below(layer, "sru.")
    width, outputs, last = sru.hidden_size, [], []
    for direction in range(2 if both else 1):
        at, c = slice(direction * width, (direction + 1) * width), start
        c = torch.zeros(width) if c is None else c
        hidden = [torch.zeros(0)] * len(x)
        for t in reversed(range(len(x))) if direction else range(len(x)):
            hidden[t], (c,) = sru_step(own, x[t], c, at, sru.use_tanh, sru.has_skip_term)
        outputs.append(torch.stack(hidden))
        last.append(c)
    ends.append(torch.cat(last))
    return functional.linear(torch.cat(outputs, 1), layer["linear2.weight"], layer["linear2.bias"])
