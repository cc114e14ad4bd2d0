"""DrQA's document reader (Chen et al. 2017, 3.2) in plain torch, one pair at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sruserve.model.config import ModelConfig
from tests.model.importers.formulas import sru_layer

_MODULES = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}


@dataclass(frozen=True)
class Pair:
    """document, question: ids. features: (words, features). tags: their ids, by kind."""

    document: Tensor
    question: Tensor
    features: Tensor
    tags: Mapping[str, Tensor] = field(default_factory=dict)


def scores(config: ModelConfig, tensors: Mapping[str, Tensor], pair: Pair) -> Tensor:
    """The scores of the words as start and end of the answer, (words, 2)."""
    assert config.reader is not None
    table = tensors["embedding.weight"]
    words, question_words = table[pair.document], table[pair.question]
    parts = {"words": words, "features": pair.features}
    if "match.weight" in tensors:
        weight, bias = tensors["match.weight"], tensors["match.bias"]
        keys, others = (torch.relu(x @ weight.T + bias) for x in (words, question_words))
        parts["aligned"] = torch.softmax(keys @ others.T, 1) @ question_words
    for kind, numbers in pair.tags.items():
        parts[kind] = tensors[f"tags.{kind}.weight"][numbers]
    described = torch.cat([parts[name] for name in config.reader.inputs], 1)
    document = encoded(config, tensors, "rnn.", described, config.rnn.num_layers)
    question = encoded(config, tensors, "question.", question_words, config.reader.question_layers)
    if "merge.weight" in tensors:
        weights = torch.softmax(question @ tensors["merge.weight"][0] + tensors["merge.bias"], 0)
    else:
        weights = torch.full((len(question),), 1 / len(question))
    merged = weights @ question
    ends = [
        document @ (tensors[f"{end}.weight"] @ merged + tensors[f"{end}.bias"])
        for end in ("start", "end")
    ]
    return torch.stack(ends, 1)


def encoded(
    config: ModelConfig, tensors: Mapping[str, Tensor], prefix: str, x: Tensor, layers: int
) -> Tensor:
    """A stacked bidirectional encoder: the outputs of all layers side by side, or the last's."""
    outputs = []
    for layer in range(layers):
        x = _layer(config, tensors, prefix, x, layer)
        outputs.append(x)
    concat = config.rnn.model_dump().get("concat_layers")
    return torch.cat(outputs, 1) if concat else x


def _layer(
    config: ModelConfig, tensors: Mapping[str, Tensor], prefix: str, x: Tensor, layer: int
) -> Tensor:
    family = config.rnn.family
    if family == "sru":
        own = {name: tensors[f"{prefix}rnn_lst.{layer}.{name}"] for name in ("weight", "bias")}
        peephole = tensors[f"{prefix}rnn_lst.{layer}.weight_c"]
        return sru_layer(x, own["weight"], own["bias"], peephole, directions=2)
    if family == "qrnn":
        linear = f"{prefix}layers.{layer}.linear"
        return _qrnn(x, tensors[f"{linear}.weight"], tensors[f"{linear}.bias"])
    hidden = config.rnn.layer_hidden(layer)
    module = _MODULES[family](x.shape[1], hidden, bidirectional=True)
    state = {
        name: tensors[f"{prefix}{name.replace('_l0', f'_l{layer}')}"]
        for name in module.state_dict()
    }
    module.load_state_dict(state)
    with torch.no_grad():
        result: Tensor = module(x[:, None])[0][:, 0]
    return result


def _qrnn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """c = f * z + (1 - f) * c', h = o * c, forward in the first half of the channels."""
    z, f, o = (x @ weight.T + bias).chunk(3, 1)
    z, f, o = torch.tanh(z), torch.sigmoid(f), torch.sigmoid(o)
    half, c = z.shape[1] // 2, torch.empty_like(z)
    for channels, times in (
        (slice(0, half), range(len(x))),
        (slice(half, None), range(len(x) - 1, -1, -1)),
    ):
        state = torch.zeros(half)
        for t in times:
            state = f[t, channels] * z[t, channels] + (1 - f[t, channels]) * state
            c[t, channels] = state
    return o * c
