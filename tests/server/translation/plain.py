"""A plain beam search, from its formulas: every hypothesis is computed from its beginning."""

from typing import NamedTuple

import torch

from sruserve.model.translation.translator import Translator
from tests.model.translation.systems import BOS, EOS, forced


class Translation(NamedTuple):
    """A translation, the best one first in a list."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    finish_reason: str


class _Hypothesis(NamedTuple):
    tokens: tuple[int, ...]
    total: float


def search(
    system: Translator,
    source: list[int],
    beams: int,
    n_best: int = 1,
    alpha: float = 0.6,
    limit: int | None = None,
) -> list[Translation]:
    """The `n_best` translations of a source."""
    memory = system.encode([torch.tensor(source)])
    limit = min(limit or len(source) + 50, system.max_target or 1 << 30)
    going, ended = [_Hypothesis((), 0.0)], list[Translation]()

    def penalised(total: float, length: int) -> float:
        return float(total / ((5 + length) / 6) ** alpha)

    while True:
        continuations = []
        for place, hypothesis in enumerate(going):
            scores = forced(system, memory, 0, [BOS, *hypothesis.tokens]).log_probs[-1].tolist()
            for token, score in enumerate(scores):
                if token != BOS:
                    continuations.append((-(hypothesis.total + score), place, token))
        before, going = going, []
        for rank, (total, place, token) in enumerate(sorted(continuations)):
            if token == EOS and rank < beams:
                tokens = before[place].tokens
                ended.append(
                    Translation(tokens, -total, penalised(-total, len(tokens) + 1), "stop")
                )
            elif token != EOS and len(going) < beams and rank < 2 * beams:
                going.append(_Hypothesis((*before[place].tokens, token), -total))
        ended.sort(key=lambda translation: -translation.score)
        best = ended[:n_best]
        if beams == 1 and ended:
            return best
        length = len(going[0].tokens)
        if len(best) == n_best:
            hopes = max(penalised(hypothesis.total, limit) for hypothesis in going)
            if best[-1].score >= hopes:
                return best
        if length == limit:
            cut = [Translation(*each, penalised(each.total, limit), "length") for each in going]
            return [*best, *sorted(cut, key=lambda translation: -translation.score)][:n_best]
