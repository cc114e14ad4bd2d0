"""The prompts of a completion request, and the items of a job that continue them."""

from collections.abc import Sequence
from dataclasses import dataclass

from sruserve.server.api.inputs import Ids, encode_input, sampler_key
from sruserve.server.api.requests import CompletionRequest
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Item, Snapshot


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the choices of one prompt go on from.

    ids: (tokens), int64, behind `start`; `word` is left unfinished by them.
    text: the prompt as it was sent, or what its ids spell.
    """

    ids: Ids
    word: str
    start: Snapshot | None
    text: str


def read_prompts(
    request: CompletionRequest, served: Served, given: Sequence[str | list[int]]
) -> list[Prompt]:
    """The prompts of a request, each with its state."""
    prompts = []
    for one, start in zip(given, served.starts(request, len(given)), strict=True):
        ids, word = encode_input(served, one, start, "prompt")
        prompts.append(Prompt(ids, word, start, _text(one, served)))
    return prompts


def choices_of(prompts: Sequence[Prompt], request: CompletionRequest) -> list[Item]:
    """`n` items for each prompt, which differ in the keys of their samplers."""
    items = []
    for prompt in prompts:
        seed, choice = sampler_key(prompt.start, request.seed)
        items += [
            Item(prompt.ids, prompt.start, prompt.word, False, seed, choice + i)
            for i in range(request.n or 1)
        ]
    return items


def _text(given: str | list[int], served: Served) -> str:
    """A prompt as text: of a model without a vocabulary it is empty, as its completions are."""
    if isinstance(given, str):
        return given
    codec = served.model.codec
    return b"".join([codec.pieces[i] for i in given]).decode(errors="replace") if codec else ""
