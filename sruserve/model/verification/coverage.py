"""What a case says about a model, and what it leaves open."""

from sruserve.model.folder import Model
from sruserve.model.verification.cases import Case
from sruserve.model.verification.text_cases import TextCase

_POOLED = ("classify", "pair", "regress")


def coverage(model: Model, case: Case | TextCase) -> tuple[list[str], list[str]]:
    """Return the parts of a model that a case compares, and the parts that it does not."""
    parts = _parts(model)
    covered = _of_texts(case) if isinstance(case, TextCase) else _of_tensors(model, case)
    return [part for part in parts if part in covered], [
        part for part in parts if part not in covered
    ]


def _parts(model: Model) -> list[str]:
    """Return the parts that a model has, in the order of an input's way through it."""
    config = model.config
    every_step = config.regression is not None and config.regression.steps == "every"
    has = {
        "tokenizer": model.codec is not None,
        "embedding": config.vocab_size is not None,
        "stack": True,
        "end state": model.network.supports_streaming,
        "pooling": config.task in _POOLED and not every_step,
        "head": config.outputs is not None,
        "labels": bool(config.labels),
    }
    return [part for part, present in has.items() if present]


def _of_texts(case: TextCase) -> set[str]:
    covered: set[str] = set()
    for entry in case.entries:
        if entry.text is not None:
            covered.add("tokenizer")
        if entry.has_answer:
            covered |= {"embedding", "stack", "pooling", "head"}
        named = entry.label is not None or entry.labels is not None
        if named or isinstance(entry.probabilities, dict):
            covered.add("labels")
    return covered


def _of_tensors(model: Model, case: Case) -> set[str]:
    covered = {"embedding", "stack"}
    if case.ends(model):
        covered.add("end state")
    if case.answers() or any(kind != "h" for _, kind in case.outputs()):
        covered.add("head")
    pools_every_step = model.config.head.pooling != "last" and "head" in covered
    if case.answers() or pools_every_step:
        covered.add("pooling")
    return covered
