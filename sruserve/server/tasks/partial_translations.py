"""The translations that a request continues."""

from collections.abc import Sequence

from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.errors import InvalidRequest
from sruserve.server.offload import offload
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import opens_long
from sruserve.server.tasks.translate_request import TranslateRequest


async def read_states(
    caller: Caller, request: TranslateRequest, served: ServedTranslator, count: int, cost: int
) -> Sequence[PartialTranslation | None]:
    """The translation before each of `count` texts; None for texts that are whole.

    Raises `CannotStream` for a model that reads whole texts alone, `InvalidRequest`, or
    `StateRefused`.
    """
    field, state = request.in_chunks_by, request.state
    if field is None:
        return [None] * count
    served.check_chunks(field)
    states = [None] * count if state is None else [state] if isinstance(state, str) else state
    if len(states) != count:
        raise InvalidRequest(
            f"there are {len(states)} states for {count} texts; send one for each text (null for a "
            "new one)",
            param="state",
        )

    def open_all() -> list[PartialTranslation]:
        return [_open(request, served, each) for each in states]

    return await offload(opens_long(state), open_all, cost=cost, caller=caller)


def _open(
    request: TranslateRequest, served: ServedTranslator, state: str | None
) -> PartialTranslation:
    """The translation in a state, or one that begins."""
    if state is not None:
        before = served.states.open(state)
        _check_same("wait_k", request.wait_k, before.wait_k)
        _check_same("max_tokens", request.max_tokens, before.max_tokens)
        return before
    if request.wait_k is None:
        raise InvalidRequest(
            "a text of 'input' has no state: send 'wait_k', the number of its tokens that are read "
            "before the first token is written",
            param="wait_k",
        )
    max_tokens = request.max_tokens or 0
    return PartialTranslation.begin(served.model.translator, request.wait_k, max_tokens)


def _check_same(name: str, value: int | None, earlier: int) -> None:
    """Raise `InvalidRequest` if a later chunk changes an option."""
    if value is not None and value != earlier:
        raise InvalidRequest(
            f"'{name}' is {value}, and the state's translation began "
            f"{f'with {earlier}' if earlier else 'without it'}: leave '{name}' out",
            param=name,
        )
