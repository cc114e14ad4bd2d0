"""Translate: texts in another language, by a beam search."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

from sruserve.model.text.codec import token_text
from sruserve.model.translation.text import SideText
from sruserve.server.engine.decoding_parameters import BeamSearch
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Hypothesis, Translated
from sruserve.server.engine.translation.needs import Needs
from sruserve.server.errors import InvalidRequest, Refused
from sruserve.server.offload import LONG_CHARACTERS
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.chunks import ChunkBuffer, Room
from sruserve.server.tasks.encode import listed
from sruserve.server.tasks.inputs import INPUT_CHARACTERS
from sruserve.server.tasks.per_input import Results
from sruserve.server.tasks.task import Task
from sruserve.server.tasks.translate_request import TranslateRequest
from sruserve.server.tasks.translation import Translation
from sruserve.server.tasks.translation_sources import Source, read_sources
from sruserve.server.tasks.translation_text import TranslationWriter

_TOKEN_NUMBERS = 2  # of a reply, for a token's text
_STREAM_NUMBERS = 1024  # that a stream may always have waiting: enough for a fast client
_ADVICE = "lower `max_tokens` or `n_best`, leave out `attention`, or send fewer or shorter texts"


class TranslateTask(Task[TranslateRequest, ServedTranslator]):
    """The `n_best` translations of each text, the best one first."""

    name, schema = "translate", TranslateRequest
    route, prefix = "translate", "tr"

    async def run(
        self, caller: Caller, request: TranslateRequest, served: ServedTranslator, cost: int
    ) -> Results:
        """Translate the texts of a request. cost: bytes of the request, for the queue."""
        sources = await read_sources(caller, request, served, self.limits, cost)
        with ExitStack() as stack:
            begun = self._begin(caller, request, served, sources, cost, streams=False)
            translation = stack.enter_context(begun)
            results = await translation.results()
            steps = sum(result.steps for result in results)
            size = translation.numbers + INPUT_CHARACTERS * len(sources)
            return Results(sources, results, steps, size > LONG_CHARACTERS, stack.pop_all())

    @asynccontextmanager
    async def stream(
        self, caller: Caller, request: TranslateRequest, served: ServedTranslator, cost: int
    ) -> AsyncIterator[Translation]:
        """Translate while the block reads; the job is withdrawn if the block ends first."""
        sources = await read_sources(caller, request, served, self.limits, cost)
        with self._begin(caller, request, served, sources, cost, streams=True) as translation:
            yield translation

    def describe(self, served: ServedTranslator, item: Any, result: Any) -> dict[str, Any]:
        described = [self._described(served, item, each) for each in result.hypotheses]
        state = None if result.partial is None else served.states.seal(result.partial)
        return {**described[0], "alternatives": described[1:], "state": state}

    def _described(
        self, served: ServedTranslator, item: Source, hypothesis: Hypothesis
    ) -> dict[str, Any]:
        source_text, target_text = served.model.source_text, served.model.target_text
        ids: list[int] = hypothesis.tokens.tolist()
        earlier = 0 if item.before is None else len(item.before.tokens)
        writer = TranslationWriter(target_text, item.before)
        text, token_ids = writer.write(ids[earlier:], ends=hypothesis.finish_reason is not None)
        alignment = None
        if hypothesis.attention is not None:
            alignment = {
                "source": _token_texts(source_text, item.inputs.tolist()),
                "target": _token_texts(target_text, ids),
                "weights": listed(hypothesis.attention),
            }
        return {
            "text": text,
            "token_ids": token_ids,
            "finish_reason": hypothesis.finish_reason,
            "score": hypothesis.score if item.scores else None,
            "log_probability": hypothesis.log_probability if item.scores else None,
            "alignment": alignment,
        }

    @contextmanager
    def _begin(
        self,
        caller: Caller,
        request: TranslateRequest,
        served: ServedTranslator,
        sources: Sequence[Source],
        cost: int,
        *,
        streams: bool,
    ) -> Iterator[Translation]:
        """Submit the job of a request, which is withdrawn if the block ends first.

        Raises `InvalidRequest`, or `TooManyAtOnce` if there is no memory for its beams.
        """
        search = BeamSearch(
            request.beams, request.length_penalty, request.max_tokens or 0, request.n_best,
            request.attention,
        )  # fmt: skip
        done = caller.loop.create_future()
        needs = served.engine.needs(search, sources)
        self._check_tokens(request, served, needs)
        numbers, states = _reply_numbers(request, sources, needs), 0
        for source, need in zip(sources, needs, strict=True):
            states += _state_numbers(served, source, need)
        free = min(numbers, _STREAM_NUMBERS) if streams else numbers
        hold = self.limits.reserve_reply(free + states, _ADVICE)
        buffer: ChunkBuffer[Translated] | None = None
        if streams:
            room = Room(hold, free, _TOKEN_NUMBERS, self.limits.reply_numbers)
            buffer = ChunkBuffer(done, 1, room)
        translation = Translation(caller, served, done, sources, buffer, numbers + states, states)
        job = Job(
            kind=JobKind.TRANSLATE,
            items=sources,
            loop=caller.loop,
            deliver=translation.deliver,
            done=done,
            stream=streams,
            search=search,
            input_bytes=cost,
            deadline=self.limits.deadline(request.timeout_ms),
            priority=served.tenant.priority(request.priority),
        )
        limit = job.inputs + search.beam_size * sum(each.max_tokens for each in needs)
        with caller.unsent(hold), served.tenant.spend(limit) as spent:
            served.translate(job, needs)
            caller.submitted()
            if caller.observation is not None:
                caller.observation.follow(job)
            spent.used = None
            try:
                yield translation
            except Refused:
                if not job.begun:
                    spent.used = 0
                raise
            finally:
                if translation.complete:
                    spent.used = translation.steps
                done.cancel()  # no effect on a job that has ended

    def _check_tokens(
        self, request: TranslateRequest, served: ServedTranslator, needs: Sequence[Needs]
    ) -> None:
        """Raise `InvalidRequest` if translations may have more tokens than the limits allow."""
        positions = served.model.translator.max_target
        if (
            request.max_tokens is not None
            and positions is not None
            and request.max_tokens > positions
        ):
            raise InvalidRequest(
                f"'max_tokens' is {request.max_tokens}, and {served.name} has {positions} "
                f"positions: lower it to {positions}",
                param="max_tokens",
            )
        tokens = sum(each.max_tokens for each in needs)
        if tokens > self.limits.new_tokens:
            raise InvalidRequest(
                f"the translations may have {tokens} tokens, over the limit of "
                f"{self.limits.new_tokens} for a request: lower 'max_tokens', send several "
                "requests, or ask the operator to raise SRUSERVE_MAX_NEW_TOKENS",
                param="max_tokens",
            )


def _reply_numbers(
    request: TranslateRequest, sources: Sequence[Source], needs: Sequence[Needs]
) -> int:
    """The approximate most numbers of a reply."""
    numbers = 0
    for source, need in zip(sources, needs, strict=True):
        each = _TOKEN_NUMBERS * need.max_tokens
        if request.attention:
            each += (need.max_tokens + _TOKEN_NUMBERS) * len(source.inputs)
        numbers += each * request.n_best
    return numbers


def _state_numbers(served: ServedTranslator, source: Source, need: Needs) -> int:
    """The numbers in a reply for the state of one text; raises `StateTooLarge`."""
    if source.before is None or not source.more:
        return 0
    tokens = len(source.before.tokens) + need.max_tokens
    return served.states.check_fit(source.length, tokens, source.word) // 4


def _token_texts(text: SideText | None, ids: Sequence[int]) -> list[str]:
    codec = None if text is None else text.codec
    return [token_text(codec, i) for i in ids]
