"""What a trained module answers, as a server replies it."""

import torch
from torch import Tensor, nn

from sruserve.model.folder import Model
from tests.tracing.networks import Network
from tests.tracing.training import scores_of, trained


def made(network: Network) -> nn.Module:
    """A trained module."""
    return trained(network.build())


def expected(module: nn.Module, model: Model, x: Tensor, time_first: bool) -> Tensor:
    """The module's own answer to one input, as a server replies it."""
    inner = getattr(module, "_orig_mod", module).eval()
    x = x.squeeze(-1) if type(inner).__name__ == "Series" else x
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        scores = scores_of(inner(x.unsqueeze(1 if time_first else 0))).detach()
    config = model.config
    if config.task == "tag":
        scores = scores.transpose(1, 2)
    scores = scores.reshape(-1, scores.shape[-1] if scores.dim() else 1)
    kind = type(inner).__name__
    if kind in ("CustomNames", "LanguageModel"):
        return scores.exp()
    if kind == "MLPHead" or config.activation == "none":
        return scores
    if kind in ("MultiLabel", "BinaryLogit", "SentimentRNN"):
        scores = scores if getattr(inner, "sigmoid", True) else scores.sigmoid()
        return torch.cat([1 - scores, scores], 1) if len(config.labels) == 2 else scores
    return scores.softmax(-1)
