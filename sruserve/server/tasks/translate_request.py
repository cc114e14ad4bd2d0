"""The fields of a request to translate."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from sruserve.server.tasks.requests import INPUT, Input, ModelRequest, explained

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
        False, description="Send translations while they grow, as events; with one beam only."
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
        return 1 if self.stream else max(BEAMS, self.n_best)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
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
