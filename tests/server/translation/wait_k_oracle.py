"""Greedy wait-k translation in plain torch (Ma et al. 2019): each step is computed from the start.

It knows only what `torch.nn` has: a GRU or LSTM on both sides, with Luong's attention.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sruserve.model.translation.recurrent_config import RecurrentConfig
from tests.model.translation.systems import BOS, EOS

_KINDS: dict[str, Any] = {"gru": nn.GRU, "lstm": nn.LSTM}


class Written(NamedTuple):
    """A translation.

    log_probabilities: of each token, and of the end. read: ids of the source that each step saw.
    """

    tokens: list[int]
    finish_reason: str
    log_probabilities: list[float]
    read: list[int]


def wait_k(
    config: RecurrentConfig,
    tensors: Mapping[str, Tensor],
    source: list[int],
    k: int,
    limit: int,
) -> Written:
    """Translate a source; `limit`: the most tokens."""
    tokens, log_probabilities, read = list[int](), list[float](), list[int]()
    while len(tokens) < limit:
        read.append(min(k + len(tokens), len(source)))
        scores = _next(config, tensors, source, k, [BOS, *tokens])
        scores[BOS] = -torch.inf
        best = int(scores.argmax())
        log_probabilities.append(float(scores[best]))
        if best == EOS:
            return Written(tokens, "stop", log_probabilities, read)
        tokens.append(best)
    return Written(tokens, "length", log_probabilities, read)


def _next(
    config: RecurrentConfig,
    tensors: Mapping[str, Tensor],
    source: list[int],
    k: int,
    ids: list[int],
) -> Tensor:
    """The log-probabilities of the token that follows `ids`, (ids of the target)."""
    encoder, decoder = (_layers(config, tensors, side) for side in ("encoder", "decoder"))
    embedded = tensors["source_embedding.weight"][torch.tensor(source)]
    _, state = encoder(embedded[: min(k, len(source))])
    if not config.encoder_starts_decoder:
        state = tuple(map(torch.zeros_like, state)) if config.family == "lstm" else state * 0
    fed = torch.zeros(config.hidden_width)
    for step, token in enumerate(ids):
        seen, _ = encoder(embedded[: min(k + step, len(source))])
        x = torch.cat((tensors["target_embedding.weight"][token], fed))
        hidden, state = decoder(x[None], state)
        (query,) = hidden
        if config.attention == "general":
            query = tensors["attention.linear_in.weight"] @ query
        context = (seen @ query).softmax(0) @ seen
        mixed = tensors["attention.linear_out.weight"] @ torch.cat((context, hidden[0]))
        fed = mixed.tanh()
    scores = tensors["output.weight"] @ fed + tensors["output.bias"]
    return scores.log_softmax(0)


def _layers(config: RecurrentConfig, tensors: Mapping[str, Tensor], side: str) -> Any:
    stack = getattr(config, side)
    layers = _KINDS[config.family](stack.input_size, stack.hidden_size, stack.num_layers)
    own = {k.removeprefix(f"{side}."): v for k, v in tensors.items() if k.startswith(f"{side}.")}
    layers.load_state_dict(own)
    return layers
