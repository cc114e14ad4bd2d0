"""A model in this process, for `await`."""

from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from sruserve.api import calls
from sruserve.api.answering import AnswerOptions, Passage, Passages, answer
from sruserve.api.completing import Completing
from sruserve.api.generation import AsyncGeneration
from sruserve.api.inputs import One, Several
from sruserve.api.model_facts import ModelFacts
from sruserve.api.options import InputOptions, PromptOptions
from sruserve.api.results import (
    Answers,
    Classification,
    Encoding,
    Regression,
    Score,
    Tagging,
    Translation,
)
from sruserve.api.stream import AsyncStream
from sruserve.api.stream_state import StreamState
from sruserve.server.tasks.requests import (
    ClassifyRequest,
    EncodeRequest,
    RegressRequest,
    ScoreRequest,
    TagRequest,
)
from sruserve.server.tasks.translate_request import TranslateRequest


class AsyncModel(ModelFacts):
    """The methods of `Model` as coroutines, for any event loop. A cancelled one ends its work."""

    @overload
    async def classify(
        self, inputs: One, *, pair: One | None = ..., **options: Unpack[calls.ClassifyOptions]
    ) -> Classification: ...
    @overload
    async def classify(
        self,
        inputs: Several,
        *,
        pair: Several | None = ...,
        **options: Unpack[calls.ClassifyOptions],
    ) -> list[Classification]: ...
    async def classify(self, inputs: Any, **options: Any) -> Any:
        """See `Model.classify`."""
        return await self._run(ClassifyRequest, inputs, options)

    @overload
    async def tag(self, inputs: One, **options: Unpack[InputOptions]) -> Tagging: ...
    @overload
    async def tag(self, inputs: Several, **options: Unpack[InputOptions]) -> list[Tagging]: ...
    async def tag(self, inputs: Any, **options: Any) -> Any:
        """See `Model.tag`."""
        return await self._run(TagRequest, inputs, options)

    @overload
    async def regress(self, inputs: One, **options: Unpack[calls.RegressOptions]) -> Regression: ...
    @overload
    async def regress(
        self, inputs: Several, **options: Unpack[calls.RegressOptions]
    ) -> list[Regression]: ...
    async def regress(self, inputs: Any, **options: Any) -> Any:
        """See `Model.regress`."""
        return await self._run(RegressRequest, inputs, options)

    @overload
    async def answer(
        self, question: str, context: Passage | None = None, **options: Unpack[AnswerOptions]
    ) -> Answers: ...
    @overload
    async def answer(
        self,
        question: Passages,
        context: str | Passages | None = None,
        **options: Unpack[AnswerOptions],
    ) -> list[Answers]: ...
    async def answer(self, question: Any, context: Any = None, **options: Any) -> Any:
        """See `Model.answer`."""
        self._local.check_open()
        return await self._local.loop.join(answer(self._local, question, context, **options))

    @overload
    async def encode(self, inputs: One, **options: Unpack[InputOptions]) -> Encoding: ...
    @overload
    async def encode(self, inputs: Several, **options: Unpack[InputOptions]) -> list[Encoding]: ...
    async def encode(self, inputs: Any, **options: Any) -> Any:
        """See `Model.encode`."""
        return await self._run(EncodeRequest, inputs, options)

    async def embed(self, inputs: One | Several) -> NDArray[np.float32]:
        """See `Model.embed`."""
        self._local.check_open()
        return await self._local.loop.join(calls.embed(self._local, inputs))

    @overload
    async def score(self, inputs: One, **options: Unpack[InputOptions]) -> Score: ...
    @overload
    async def score(self, inputs: Several, **options: Unpack[InputOptions]) -> list[Score]: ...
    async def score(self, inputs: Any, **options: Any) -> Any:
        """See `Model.score`."""
        return await self._run(ScoreRequest, inputs, options)

    @overload
    async def translate(
        self, inputs: One, **options: Unpack[calls.TranslateOptions]
    ) -> Translation: ...
    @overload
    async def translate(
        self, inputs: Several, **options: Unpack[calls.TranslateOptions]
    ) -> list[Translation]: ...
    async def translate(self, inputs: Any, **options: Any) -> Any:
        """See `Model.translate`."""
        return await self._run(TranslateRequest, inputs, {**options, "scores": True})

    @overload
    def generate(
        self, prompt: One = ..., *, n: None = ..., **options: Unpack[PromptOptions]
    ) -> AsyncGeneration: ...
    @overload
    def generate(
        self, prompt: One | Several, *, n: int, **options: Unpack[PromptOptions]
    ) -> list[AsyncGeneration]: ...
    @overload
    def generate(
        self, prompt: Several, *, n: int | None = ..., **options: Unpack[PromptOptions]
    ) -> list[AsyncGeneration]: ...
    def generate(self, prompt: Any = "", *, n: int | None = None, **options: Any) -> Any:
        """See `Model.generate`; iterate with `async for`. It begins with its first piece."""
        self._local.check_open()
        run = Completing.of(self._local, prompt, {**options, "n": n})
        generations = [AsyncGeneration(self._local.loop, run, i) for i in range(run.choices)]
        return generations if n is not None or not calls.is_single(prompt) else generations[0]

    def stream(self, state: str | None = None, preset: str | None = None) -> AsyncStream:
        """See `Model.stream`."""
        return AsyncStream(StreamState.of(self._local, state, preset))

    async def _run(self, schema: Any, inputs: Any, options: Any) -> Any:
        self._local.check_open()
        return await self._local.loop.join(calls.run(self._local, schema, inputs, **options))
