"""The model to examine, of those that a server lists."""

from collections.abc import Sequence

from sruserve.check.errors import Misuse

_SHOWN = 20


def choose(model: str | None, models: Sequence[str], kind: str) -> str:
    """The wanted model, or the only one. kind: what the protocol can examine."""
    shown = ", ".join(sorted(models)[:_SHOWN]) or "none"
    if model is None:
        if len(models) == 1:
            return models[0]
        if not models:
            raise Misuse(f"the server lists no {kind}; name one with --model")
        raise Misuse(f"the server has several {kind}; name one with --model: {shown}")
    if models and model not in models:
        raise Misuse(f"the server has no {model!r} among {kind}; --model may be: {shown}")
    return model
