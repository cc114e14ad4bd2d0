"""A model in this process, as Python calls it."""

from functools import cached_property
from typing import Any, Self, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from sruserve.api import calls
from sruserve.api.answering import AnswerOptions, Passage, Passages, answer
from sruserve.api.async_model import AsyncModel
from sruserve.api.completing import Completing
from sruserve.api.generation import Generation
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
from sruserve.api.stream import Stream
from sruserve.api.stream_state import StreamState
from sruserve.server.tasks.requests import (
    ClassifyRequest,
    EncodeRequest,
    RegressRequest,
    ScoreRequest,
    TagRequest,
)
from sruserve.server.tasks.translate_request import TranslateRequest


class Model(ModelFacts):
    """A model that `sruserve.load` has loaded, with the server's engine and scheduler.

    One input gives one result, several give a list of results in their order. Any number of threads
    may call it: their inputs are computed together, and company changes no result. Long lists go
    through the engine in bounded pieces. Every method raises `sruserve.ServeError`, whose `code` is
    stable; a method that does not fit the model's task raises `WrongTask`.

    A `with` block closes it, as `close` does. After a fork of the process it raises
    `ForkedProcess`.
    """

    @cached_property
    def aio(self) -> AsyncModel:
        """The same methods for `await`, on any event loop."""
        return AsyncModel(self._local)

    @overload
    def classify(
        self, inputs: One, *, pair: One | None = ..., **options: Unpack[calls.ClassifyOptions]
    ) -> Classification: ...
    @overload
    def classify(
        self,
        inputs: Several,
        *,
        pair: Several | None = ...,
        **options: Unpack[calls.ClassifyOptions],
    ) -> list[Classification]: ...
    def classify(self, inputs: Any, **options: Any) -> Any:
        """The label of each input, with the scores of all labels.

        pair: for a model that compares two inputs, the second one of each.
        raw_scores: the network's own scores, before softmax or sigmoid.
        """
        return self._run(ClassifyRequest, inputs, options)

    @overload
    def tag(self, inputs: One, **options: Unpack[InputOptions]) -> Tagging: ...
    @overload
    def tag(self, inputs: Several, **options: Unpack[InputOptions]) -> list[Tagging]: ...
    def tag(self, inputs: Any, **options: Any) -> Any:
        """The label of each step of each input, and the spans that the labels mark."""
        return self._run(TagRequest, inputs, options)

    @overload
    def regress(self, inputs: One, **options: Unpack[calls.RegressOptions]) -> Regression: ...
    @overload
    def regress(
        self, inputs: Several, **options: Unpack[calls.RegressOptions]
    ) -> list[Regression]: ...
    def regress(self, inputs: Any, **options: Any) -> Any:
        """The values that are predicted from each input.

        steps_ahead: feed the predictions back as the next steps, this number of times.
        """
        return self._run(RegressRequest, inputs, options)

    @overload
    def answer(
        self, question: str, context: Passage | None = None, **options: Unpack[AnswerOptions]
    ) -> Answers: ...
    @overload
    def answer(
        self,
        question: Passages,
        context: str | Passages | None = None,
        **options: Unpack[AnswerOptions],
    ) -> list[Answers]: ...
    def answer(self, question: Any, context: Any = None, **options: Any) -> Any:
        """The answers to each question, which are spans of its context.

        context: of all questions, or one for each; or `preset`, the name of a document in the
            model's folder.
        n_best: most answers to each question, the best one first.
        features: lemmas and tags of the words, for a model that needs them.
        """
        self._local.check_open()
        return self._local.loop.run(answer(self._local, question, context, **options))

    @overload
    def encode(self, inputs: One, **options: Unpack[InputOptions]) -> Encoding: ...
    @overload
    def encode(self, inputs: Several, **options: Unpack[InputOptions]) -> list[Encoding]: ...
    def encode(self, inputs: Any, **options: Any) -> Any:
        """The outputs of an encoder for each step: (steps, width), float32."""
        return self._run(EncodeRequest, inputs, options)

    def embed(self, inputs: One | Several) -> NDArray[np.float32]:
        """The vector of an input, (width), or those of several, (inputs, width); float32.

        A classifier's is the row that its head reads, and an encoder's its last output: those of
        `/v1/embeddings`. They are not normalised.
        """
        self._local.check_open()
        return self._local.loop.run(calls.embed(self._local, inputs))

    @overload
    def score(self, inputs: One, **options: Unpack[InputOptions]) -> Score: ...
    @overload
    def score(self, inputs: Several, **options: Unpack[InputOptions]) -> list[Score]: ...
    def score(self, inputs: Any, **options: Any) -> Any:
        """The likelihood of each text under a language model."""
        return self._run(ScoreRequest, inputs, options)

    @overload
    def translate(self, inputs: One, **options: Unpack[calls.TranslateOptions]) -> Translation: ...
    @overload
    def translate(
        self, inputs: Several, **options: Unpack[calls.TranslateOptions]
    ) -> list[Translation]: ...
    def translate(self, inputs: Any, **options: Any) -> Any:
        """Translate texts into the language that the model writes, by a beam search."""
        return self._run(TranslateRequest, inputs, {**options, "scores": True})

    @overload
    def generate(
        self, prompt: One = ..., *, n: None = ..., **options: Unpack[PromptOptions]
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: One | Several, *, n: int, **options: Unpack[PromptOptions]
    ) -> list[Generation]: ...
    @overload
    def generate(
        self, prompt: Several, *, n: int | None = ..., **options: Unpack[PromptOptions]
    ) -> list[Generation]: ...
    def generate(self, prompt: Any = "", *, n: int | None = None, **options: Any) -> Any:
        """Continue a prompt: an iterator of pieces of text, which the model writes meanwhile.

        Several prompts, or `n` completions of each, give a list: `p * n + i` is the i-th of
        prompt p. A `seed` gives the text that a server gives for it.
        """
        self._local.check_open()
        run = Completing.of(self._local, prompt, {**options, "n": n})
        self._local.loop.run(run.begin())
        generations = [Generation(self._local.loop, run, i) for i in range(run.choices)]
        return generations if n is not None or not calls.is_single(prompt) else generations[0]

    def stream(self, state: str | None = None, preset: str | None = None) -> Stream:
        """A stream: one input in chunks. It begins from nothing, a preset, or a state's token.

        The token is of this model, of an earlier process or of a server with the same state keys.
        Raises `StateRefused`, or `CannotStream` for a model that reads whole inputs.
        """
        return Stream(StreamState.of(self._local, state, preset))

    def close(self, drain_seconds: float | None = None) -> None:
        """End the model and its engine; nothing happens the second time.

        Open completions with `return_state` end with the text so far and the state that continues
        it; others raise `ModelClosed`.

        drain_seconds: how long other running calls of other threads may take to finish; None:
            `SRUSERVE_DRAIN_SECONDS`, 20 by default.
        """
        seconds = self._local.settings.drain_seconds if drain_seconds is None else drain_seconds
        self._local.loop.run(self._local.stop(seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(None if kind is None else 0.0)

    def _run(self, schema: Any, inputs: Any, options: Any) -> Any:
        self._local.check_open()
        return self._local.loop.run(calls.run(self._local, schema, inputs, **options))
