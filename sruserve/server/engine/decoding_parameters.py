"""The parameters of a request that decide on the tokens of its texts."""

from dataclasses import dataclass

from sruserve.server.engine.constrained.protocols import TextConstraint


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters that pick a completion's tokens. Defaults are OpenAI's.

    frequency_penalty, presence_penalty: OpenAI's, over the last tokens that the state carries.
    logit_bias: pairs of a token id and a bias that is added to its score.
    allowed: the only token ids to pick; empty: all.
    constraint: the text matches it; a text that ends for its length is the beginning of a match.
    state_interval: characters (tokens, without a codec) between the intermediate states of a
        streamed completion whose `state_output` is COPY; 0 is never.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    constraint: TextConstraint | None = None
    state_interval: int = 0

    @property
    def penalises(self) -> bool:
        """Whether recent tokens of the stream lower scores."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def adjusts(self) -> bool:
        """Whether scores are changed before a token is picked."""
        return self.penalises or bool(self.logit_bias or self.allowed or self.constraint)

    @property
    def by_step(self) -> bool:
        """Whether the host needs the scores of each step, even if bursts can run on a GPU."""
        return self.logprobs is not None or self.adjusts


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Parameters of the search for a translation.

    beam_size: hypotheses that continue in each step; 1 is greedy.
    length_penalty: α of the score; 0: the score is the log-probability.
    max_tokens: of one translation, with its end; 0: those of its source, and 50 more.
    n_best: translations of each source that are returned; at most `beam_size`.
    attention: return how much each token attends to the tokens of the source.
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    max_tokens: int = 0
    n_best: int = 1
    attention: bool = False
