"""What an import assumes of a network because neither its file nor an option says it."""

from collections.abc import Iterator, Mapping
from typing import Any

from sruserve.model.config import LABELLED, ModelConfig
from sruserve.model.importers.format import Imported


def assumptions(
    imported: Imported, config: ModelConfig, head: Mapping[str, Any], regressed: Mapping[str, Any]
) -> Iterator[str]:
    """Yield each assumption as a part of a line, such as "pooling last".

    head, regressed: the options of the head and of task regress, with what the file says.
    """
    yield from imported.assumed
    if imported.steps is None:
        if config.task == "regress" and "steps" not in regressed:
            yield "steps last"
        pools = config.task in (*LABELLED, "regress") and not config.answers_by_step
        pools &= not config.rnn.pools
        if pools and "pooling" not in head and config.head.pooling == "last":
            yield "pooling last"
    stated = "activation" in head or "activation" in imported.head.model_fields_set
    if config.task in LABELLED and not stated:
        yield f"activation {config.activation}"
