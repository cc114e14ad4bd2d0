"""The prompts of a completion request, and the items of a job that continue them."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from sruserve.server.engine.job import Logprobs, SequenceInput, Snapshot
from sruserve.server.repository.encoding import Ids, Tokens, encode_input, locate_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.inputs import sampler_key
from sruserve.server.tasks.limits import text_numbers

_TOKEN_NUMBERS = 8  # a token with its place, as those of tags


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the choices of one prompt go on from.

    ids: (tokens), int64, behind `start`; `word` is left unfinished by them.
    text: the prompt as it was sent, or what its ids spell; empty if it is not to be echoed.
    offsets: where in `text` each token begins, if its log-probabilities are to be echoed.
    logprobs: those of all tokens, or of all but the first, which may have nothing before it.
    """

    ids: Ids
    word: str
    start: Snapshot | None
    text: str
    offsets: Sequence[int] = ()
    logprobs: Sequence[Logprobs] = ()


def read_prompt(
    request: CompletionRequest,
    served: ServedModel,
    given: str | list[int],
    start: Snapshot | None,
    known: Tokens | None,
) -> Prompt:
    """A prompt of a request with its state. known: what a long one was read as already."""
    ids, word = encode_input(served, given, start, "prompt", known=known)
    offsets = _offsets(given, start, served, known) if request.echoes_logprobs else ()
    return Prompt(ids, word, start, _text(given, served) if request.echo else "", offsets)


def choices_of(prompts: Sequence[Prompt], request: CompletionRequest) -> list[SequenceInput]:
    """`n` items for each prompt, which differ in the keys of their samplers."""
    items = []
    for prompt in prompts:
        seed, choice = sampler_key(prompt.start, request.seed)
        items += [
            SequenceInput(prompt.ids, prompt.start, prompt.word, False, seed, choice + i)
            for i in range(request.n or 1)
        ]
    return items


def token_numbers(request: CompletionRequest) -> int:
    """How many numbers, about, a reply says of each token."""
    if request.logprobs is not None:
        return _TOKEN_NUMBERS + 2 * request.logprobs
    return 1 + request.return_token_ids


def states_numbers(prompts: Sequence[Prompt], request: CompletionRequest, each: int) -> int:
    """How many numbers, about, a reply holds for one state of each choice.

    each: of a state without its texts; 0: the reply holds none.
    """
    if not each:
        return 0
    spelled = sum(text_numbers(prompt.start.spelled) for prompt in prompts if prompt.start)
    return (len(prompts) * each + spelled) * (request.n or 1)


def echo_numbers(prompts: Sequence[Prompt], request: CompletionRequest) -> int:
    """How many numbers, about, a reply says of the prompts and their tokens."""
    if not request.echo:
        return 0
    each = token_numbers(request)
    numbers = sum(len(prompt.ids) * each + text_numbers(prompt.text) for prompt in prompts)
    return numbers * (request.n or 1)


def new_numbers(prompts: Sequence[Prompt], request: CompletionRequest) -> int:
    """How many numbers, about, a reply says of new tokens at most."""
    completions = len(prompts) * (request.n or 1)
    return completions * request.token_limit * token_numbers(request)


def _offsets(
    given: str | list[int], start: Snapshot | None, served: ServedModel, known: Tokens | None
) -> list[int]:
    """Where in a prompt's text its tokens begin; what began before it begins with it."""
    if isinstance(given, str):
        places = locate_input(served, given, start, "prompt", False, known)[1]
        begins: list[int] = places[:, 0].clip(0).tolist()
        return begins
    codec, at, offsets = served.model.codec, 0, []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in given:
        offsets.append(at)
        at += len(decoder.decode(codec.pieces[token])) if codec is not None else 0
    return offsets


def _text(given: str | list[int], served: ServedModel) -> str:
    """A prompt as text: of a model without a vocabulary it is empty, as its completions are."""
    if isinstance(given, str):
        return given
    codec = served.model.codec
    return b"".join([codec.pieces[i] for i in given]).decode(errors="replace") if codec else ""
