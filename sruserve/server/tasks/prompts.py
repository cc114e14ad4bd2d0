"""The prompts of a completion request, and the items of a job that continue them."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from sruserve.model.text.codec import pieces_after
from sruserve.server.engine.results import Logprobs
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.repository.encoding import Ids, Tokens, encode_input, locate_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.inputs import sampler_key
from sruserve.server.tasks.limits import text_numbers

_TOKEN_NUMBERS = 8  # of a token with its place, as in tags


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, which its choices continue.

    ids: (tokens), int64, after `start`; `word` is the unfinished word at their end.
    text: the prompt as text; empty unless it is echoed.
    offsets: the place of each token in `text` if its log-probabilities are echoed.
    logprobs: of all tokens, or of all but the first if it has no predecessor.
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
    content: str | list[int],
    start: Snapshot | None,
    tokens: Tokens | None,
) -> Prompt:
    """Encode a prompt of a request with its state. tokens: its tokens if they exist already."""
    ids, word = encode_input(served, content, start, "prompt", tokens=tokens, ends=False)
    offsets = _offsets(content, start, served, tokens) if request.echoes_logprobs else ()
    return Prompt(ids, word, start, _text(content, served) if request.echo else "", offsets)


def choices_of(prompts: Sequence[Prompt], request: CompletionRequest) -> list[SequenceInput]:
    """`n` items for each prompt, with different sampler keys."""
    items = []
    for prompt in prompts:
        seed, choice = sampler_key(prompt.start, request.seed)
        items += [
            SequenceInput(prompt.ids, prompt.start, prompt.word, False, seed, choice + i)
            for i in range(request.n or 1)
        ]
    return items


def token_numbers(request: CompletionRequest) -> int:
    """The approximate number of numbers in a reply for each token."""
    if request.logprobs is not None:
        return _TOKEN_NUMBERS + 2 * request.logprobs
    return 1 + request.return_token_ids


def states_numbers(
    prompts: Sequence[Prompt], request: CompletionRequest, state_numbers: int
) -> int:
    """The approximate number of numbers in a reply for one state of each choice.

    state_numbers: of one state without its texts; 0: the reply has no states.
    """
    if not state_numbers:
        return 0
    consumed = sum(text_numbers(prompt.start.consumed) for prompt in prompts if prompt.start)
    return (len(prompts) * state_numbers + consumed) * (request.n or 1)


def echo_numbers(prompts: Sequence[Prompt], request: CompletionRequest) -> int:
    """The approximate number of numbers in a reply for echoed prompts and their tokens."""
    if not request.echo:
        return 0
    per_token = token_numbers(request)
    numbers = sum(len(prompt.ids) * per_token + text_numbers(prompt.text) for prompt in prompts)
    return numbers * (request.n or 1)


def new_numbers(prompts: Sequence[Prompt], request: CompletionRequest) -> int:
    """The approximate limit of numbers in a reply for new tokens."""
    completions = len(prompts) * (request.n or 1)
    return completions * request.token_limit * token_numbers(request)


def _offsets(
    content: str | list[int], start: Snapshot | None, served: ServedModel, tokens: Tokens | None
) -> list[int]:
    """The places of a prompt's tokens in its text; a token that began earlier is at 0."""
    codec = served.model.codec
    if isinstance(content, str):
        assert codec is not None
        ids, places, _ = locate_input(served, content, start, "prompt", False, tokens, ends=False)
        begins = zip(ids.tolist(), places[:, 0].clip(0).tolist(), strict=True)
        return [begin - _space_before(content, begin, codec.pieces[id_]) for id_, begin in begins]
    at, offsets = 0, []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = None if codec is None else pieces_after(codec, -1)
    for token in content:
        piece = b"" if pieces is None else pieces[token]
        at += count_replaced(decoder, piece)
        offsets.append(at)
        at += len(decoder.decode(piece))
    return offsets


def _space_before(text: str, begin: int, piece: bytes) -> int:
    """How many characters of white space a token has before its place, which is without them."""
    if not piece or 0x20 < piece[0] < 0x7F:  # ASCII without white space, as most are
        return 0
    spelled = piece.decode(errors="replace")
    rest = spelled.lstrip()
    count = len(spelled) - len(rest)
    return count if rest and text.endswith(spelled[:count], 0, begin) else 0


def count_replaced(decoder: codecs.IncrementalDecoder, piece: bytes) -> int:
    """End an unfinished UTF-8 character that this piece cannot continue.

    Returns the number of characters that replace it.
    """
    is_continued = not piece or piece[0] & 0xC0 == 0x80
    return 0 if is_continued else len(decoder.decode(b"", True))


def _text(content: str | list[int], served: ServedModel) -> str:
    """A prompt as text; empty for a model without a vocabulary, like its completions."""
    if isinstance(content, str):
        return content
    codec = served.model.codec
    if codec is None:
        return ""
    pieces = pieces_after(codec, -1)
    return b"".join([pieces[i] for i in content]).decode(errors="replace")
