"""The sampling parameters of a completion request."""

import math

from sruserve.server.engine.constrained.protocols import TextConstraint
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.errors import InputTooLong, InvalidRequest
from sruserve.server.repository.encoding import check_ids
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.limits import InputLimits

_BAN = -100.0


def check_completions(request: CompletionRequest, completions: int, limits: InputLimits) -> None:
    """Raise if a request has too many completions, or too many tokens in all of them."""
    if completions > limits.inputs:
        raise InputTooLong(
            f"the prompts times 'n' are {completions} completions, over the limit of "
            f"{limits.inputs}; send several requests, or ask the operator to raise "
            "SRUSERVE_MAX_INPUTS",
            param="n",
        )
    max_tokens = request.token_limit
    if completions * max_tokens > limits.new_tokens:
        each = f" for each of {completions} completions" if completions > 1 else ""
        raise InvalidRequest(
            f"'max_tokens' is {max_tokens}{each}, over the limit of {limits.new_tokens} for a "
            "request; continue with `state`, send several requests, or ask the operator to raise "
            "SRUSERVE_MAX_NEW_TOKENS",
            param="max_tokens",
        )


def read_sampling(
    request: CompletionRequest, served: ServedModel, constraint: TextConstraint | None
) -> Sampling:
    """The sampling of a model's tokens; raises `InvalidRequest` for ids that it does not have."""
    biases, allowed = _biases(request, served), _allowed(request, served)
    banned = {token for token, bias in biases if bias == -math.inf}
    if constraint is not None and (allowed or banned):
        raise InvalidRequest(
            "a regex or a schema may need any token: leave out 'allowed_token_ids' and biases of "
            "-100",
            param="allowed_token_ids" if allowed else "logit_bias",
        )
    if banned.issuperset(allowed or range(served.model.config.vocab_size or 0)):
        raise InvalidRequest(
            "'logit_bias' bans every allowed token; allow at least one", param="logit_bias"
        )
    stop = request.stop or ()
    return Sampling(
        max_tokens=request.token_limit,
        min_tokens=request.min_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=request.top_k,
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logprobs=request.logprobs,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        logit_bias=biases,
        allowed=allowed,
        constraint=constraint,
        state_interval=request.state_interval,
    )


def _biases(request: CompletionRequest, served: ServedModel) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias; a ban is -infinity, so that it holds at any temperature."""
    by_token = {int(token): bias for token, bias in (request.logit_bias or {}).items()}
    check_ids(list(by_token), served.model, "logit_bias")
    return tuple(
        (token, -math.inf if bias == _BAN else bias) for token, bias in sorted(by_token.items())
    )


def _allowed(request: CompletionRequest, served: ServedModel) -> tuple[int, ...]:
    ids = request.allowed_token_ids or []
    check_ids(ids, served.model, "allowed_token_ids")
    return tuple(sorted(set(ids)))
