"""The fields of a request to translate."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from sruserve.server.tasks.requests import INPUT, Input, ModelRequest, State, explained

MAX_BEAMS = 64
BEAMS = 4  # Vaswani et al. 2017, section 6.1


class TranslateRequest(ModelRequest):
    """Texts to translate."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input": "de: 421"},
                {"input": ["en: 421", "iso: 5. März 2021"], "beam_size": 8, "n_best": 2},
                {"input": "de: 421", "stream": True},
                {"input": "de: 4", "wait_k": 8, "more": True},
            ]
        }
    )

    input: Input | None = Field(None, description=INPUT)
    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAMS)] | None = Field(
        None,
        description=f"Hypotheses that each step of the search keeps: {BEAMS} by default, and 1, "
        "which is greedy, with `stream`.",
    )
    length_penalty: float = Field(
        0.6,
        ge=0,
        le=10,
        description="Translations of n tokens are ranked by their log-probability divided by "
        "((5 + n) / 6) to this power; n counts the token that ends a translation.",
    )
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None,
        description="Most tokens of a translation, with the token that ends it: by default 50 more "
        "than those of its text.",
    )
    n_best: int = Field(
        1, ge=1, le=MAX_BEAMS, description="Translations of each text; at most `beam_size`."
    )
    scores: bool = Field(
        False, description="Return the score and the log-probability of each translation."
    )
    attention: bool = Field(
        False,
        description="Return how much each token of a translation attends to those of its text.",
    )
    stream: bool = Field(
        False,
        description="Send translations while they grow, as events; with one beam only. With "
        "`more`, the last event has the states.",
    )
    wait_k: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None,
        description="Translate greedily while the text arrives: write token t once `wait_k` + t - "
        "1 tokens of the text are read, or all of them. For models whose encoder reads in one "
        "direction.",
    )
    more: bool = Field(
        False,
        description="With `wait_k`: more of this text will follow. Hold back an unfinished word, "
        "return what can be written now, and the state that continues it.",
    )
    state: State | None = Field(
        None, description="The state that the reply to the chunk before returned."
    )
    return_state: bool = Field(
        False, description="Return the state that continues each text, as `more` does anyway."
    )
    priority: int = Field(
        0,
        ge=-1000,
        le=1000,
        description="Of a tenant's requests that wait, lower numbers get more of each step.",
    )
    timeout_ms: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="Longest wait before the first step; then 504 `deadline_exceeded`."
    )

    @property
    def beams(self) -> int:
        """The beam size, or the default one."""
        if self.beam_size is not None:
            return self.beam_size
        greedy = self.stream or self.in_chunks_by is not None
        return 1 if greedy else max(BEAMS, self.n_best)

    @property
    def in_chunks_by(self) -> str | None:
        """The name of the field by which a text arrives in chunks, if any."""
        if self.state is not None:
            return "state"
        return None if self.wait_k is None else "wait_k"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.in_chunks_by is not None:
            self._fits_chunks(self.in_chunks_by)
        elif self.more or self.return_state:
            name = "more" if self.more else "return_state"
            raise explained(
                f"'{name}' is for a text that is translated while it arrives: send 'wait_k', too, "
                f"or leave '{name}' out"
            )
        if self.stream and self.beams > 1:
            raise explained(
                "'stream' sends a translation while it grows, which only a search with one beam "
                "can: leave 'stream' out, or set 'beam_size' to 1"
            )
        if self.stream and self.attention:
            raise explained(
                "'attention' is not streamed: leave one of 'attention' and 'stream' out"
            )
        if self.n_best > self.beams:
            raise explained(
                f"'n_best' is {self.n_best} and may be at most 'beam_size', which is {self.beams}"
            )
        return self

    def _fits_chunks(self, field: str) -> None:
        """Raise the error of a field that does not go with a text in chunks."""
        if self.beams > 1:
            raise explained(
                f"'{field}' translates greedily, because what is written stays: leave 'beam_size' "
                "out, or set it to 1"
            )
        if self.attention:
            raise explained(f"'attention' does not go with '{field}': leave one of them out")
        if self.return_state and not self.more:
            raise explained(
                "'return_state' needs 'more': a translation whose text has ended does not "
                "continue; set 'more' to true, or leave 'return_state' out"
            )
