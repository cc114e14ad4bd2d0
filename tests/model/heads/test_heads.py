"""Every head agrees with its formula, row by row, and within its limit on numbers in memory."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.cells.stack import Builder, Shapes
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.heads.building import make_head, make_pairs
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.softmaxes import MAX_NUMBERS, Head

CPU = torch.device("cpu")
WIDTH, WORDS = 12, 50
STACK = SRUConfig(input_size=16, hidden_size=WIDTH)
HEADS: dict[str, dict[str, Any]] = {
    "linear": {},
    "linear without bias": {"bias": False},
    "tied": {"tied": True},
    "one cluster": {"size": 6},
    "adaptive": {"cutoffs": (10, 20, 35), "size": 16, "divide": 2},
    "mixture": {"experts": 3, "latent_size": 7},
    "tied mixture": {"experts": 4, "tied": True},
}
EVERY_HEAD = pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
EVERY_POOLING = pytest.mark.parametrize("pooling", ["last", "mean", "max", "attention"])
EVERY_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def random_weights(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }


def random_head(
    config: HeadConfig,
    dtype: torch.dtype = torch.float32,
    outputs: int = WORDS,
    max_numbers: int = MAX_NUMBERS,
) -> tuple[Head, dict[str, Tensor]]:
    shapes = config.shapes("generate", outputs, WIDTH)
    if config.tied:
        shapes["embedding.weight"] = (outputs, WIDTH)
    weights = random_weights(shapes)
    head = make_head(config, weights, outputs, Builder(dtype, CPU), max_numbers)
    assert head is not None
    return head, weights


def rows_of(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_formula(config: HeadConfig, weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Log-probabilities in float64, word by word from the definitions."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    h = hidden.double()
    if config.adaptive:
        return _adaptive(config, w, h)
    weight = w["embedding.weight" if config.tied else "output.weight"]
    bias = w["output.bias"] if config.bias else 0
    if not config.experts:
        return (h @ weight.T + bias).log_softmax(1)
    prior = (h @ w["output.prior.weight"].T).softmax(1)
    latent = (h @ w["output.latent.weight"].T + w["output.latent.bias"]).tanh()
    experts = [(part @ weight.T + bias).softmax(1) for part in latent.chunk(config.experts, 1)]
    p = sum(prior[:, k, None] * expert for k, expert in enumerate(experts))
    assert isinstance(p, Tensor)
    return (p + 1e-8).log()


def _adaptive(config: HeadConfig, w: Mapping[str, Tensor], h: Tensor) -> Tensor:
    def logits(i: int) -> Tensor:
        inner = h @ w[f"output.{i}.proj"]
        return inner @ w[f"output.{i}.weight"].T + w[f"output.{i}.bias"]

    first = logits(0).log_softmax(1)
    shortlist = (*config.cutoffs, WORDS)[0]
    rare = [
        first[:, first.shape[1] - i, None] + logits(i).log_softmax(1)
        for i in range(1, len(config.cutoffs) + 1)
    ]
    return torch.cat([first[:, :shortlist], *rare], 1)


@EVERY_HEAD
@settings(max_examples=20)
@given(rows=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_head_gives_the_probabilities_of_its_formula(
    options: dict[str, Any], rows: int, seed: int
) -> None:
    config = HeadConfig(**options)
    head, weights = random_head(config)
    hidden = rows_of(rows, seed=seed)
    scores = head(hidden)
    result = head.log_probs(scores)
    expected = by_formula(config, weights, hidden).float()
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
    assert (scores.dtype, scores.shape) == (torch.float32, (rows, WORDS))
    torch.testing.assert_close(scores.softmax(1), result.exp(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(result.exp().sum(1), torch.ones(rows), atol=1e-5, rtol=0)


@EVERY_HEAD
@EVERY_DTYPE
@settings(max_examples=10)
@given(rows=st.integers(1, 40), pieces=st.sampled_from([1, 600, 1 << 22]))
def test_a_rows_scores_do_not_depend_on_the_others_nor_on_the_pieces(
    options: dict[str, Any], dtype: torch.dtype, rows: int, pieces: int
) -> None:
    head, _ = random_head(HeadConfig(**options), dtype, max_numbers=pieces)
    hidden = rows_of(rows, dtype)
    alone = torch.cat([head(row[None]) for row in hidden])
    assert torch.equal(head(hidden), alone)


@EVERY_HEAD
def test_bfloat16_is_near(options: dict[str, Any]) -> None:
    config = HeadConfig(**options)
    head, weights = random_head(config, torch.bfloat16)
    hidden = rows_of(20, torch.bfloat16)
    rounded = {name: weight.bfloat16() for name, weight in weights.items()}
    expected = by_formula(config, rounded, hidden).float()
    torch.testing.assert_close(head.log_probs(head(hidden)), expected, atol=0.05, rtol=0.02)


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The sizes of all tensors that are allocated."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.sizes.append(result.numel())
        return result


@EVERY_HEAD
def test_a_large_result_is_filled_a_few_numbers_at_a_time(options: dict[str, Any]) -> None:
    head, _ = random_head(HeadConfig(**options), max_numbers=5000)
    with _Largest() as made:
        scores = head(rows_of(1000))
    assert max(made.sizes) == scores.numel()
    assert max(size for size in made.sizes if size < scores.numel()) <= max(5000, 1000 * WIDTH)


def test_clusters_stand_in_the_first_product_from_the_last_to_the_first() -> None:
    """torch's adaptive softmax has them in reverse order, and otherwise agrees with ours."""
    cutoffs = (10, 20, 35)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(
        16, WORDS, cutoffs, div_value=2.0, head_bias=True
    ).requires_grad_(False)
    first, bias = theirs.head.weight, theirs.head.bias
    order = [*range(10), 12, 11, 10]
    weights = {
        "output.0.weight": first[order],
        "output.0.bias": bias[order],
        "output.0.proj": torch.eye(16),
    }
    for i, tail in enumerate(theirs.tail, 1):
        inner, outer = tail.parameters()
        weights |= {f"output.{i}.proj": inner.T, f"output.{i}.weight": outer}
        weights[f"output.{i}.bias"] = torch.zeros(len(outer))
    config = HeadConfig(cutoffs=cutoffs, size=16, divide=2)
    assert {n: tuple(w.shape) for n, w in weights.items()} == config.shapes("generate", WORDS, 16)
    head = make_head(config, weights, WORDS, Builder(torch.float32, CPU))
    assert head is not None
    hidden = torch.randn(30, 16)
    torch.testing.assert_close(head(hidden), theirs.log_prob(hidden), atol=1e-5, rtol=1e-5)


def test_only_a_plain_head_is_a_product_and_a_network_without_outputs_has_none() -> None:
    for name, options in HEADS.items():
        head, _ = random_head(HeadConfig(**options))
        assert (head.linear is not None) == (name in {"linear", "linear without bias", "tied"})
    assert HeadConfig().shapes("encode", None, WIDTH) == {}
    assert make_head(HeadConfig(), {}, None, Builder(torch.float32, CPU)) is None


# Pairs.


def random_pairs(
    config: HeadConfig, lengths: list[int], dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Tensor], Tensor]:
    weights = random_weights(config.shapes("pair", 3, WIDTH), seed=1)
    return weights, rows_of(sum(lengths), dtype, seed=2)


def compare(config: HeadConfig, weights: Mapping[str, Tensor], x: Tensor, n: list[int]) -> Tensor:
    """The scores of pairs, (pairs, 3)."""
    builder = Builder(x.dtype, CPU)
    head = make_head(config, weights, 3, builder)
    assert head is not None
    return head(make_pairs(config, weights, WIDTH, builder)(x, n))


def pooled(config: HeadConfig, w: Mapping[str, Tensor], x: Tensor, side: int) -> Tensor:
    """One side as one row, in float64."""
    if config.pooling == "last":
        return x[-1]
    if config.pooling == "mean":
        return x.mean(0)
    if config.pooling == "max":
        return x.amax(0)
    own = {name: w[f"output.pool.{side}.{name}"].double() for name in ("weight", "bias", "score")}
    scores = (x @ own["weight"].T + own["bias"]).tanh() @ own["score"]
    return scores.softmax(0) @ x


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5).map(
    lambda pairs: [n for pair in pairs for n in pair]
)


@EVERY_POOLING
@pytest.mark.parametrize("combine", ["concat", "difference"])
@settings(max_examples=15)
@given(lengths=LENGTHS)
def test_a_pair_is_scored_by_its_pooled_sides(
    pooling: str, combine: str, lengths: list[int]
) -> None:
    options = {"pooling": pooling, "combine": combine, "latent_size": 9}
    config = HeadConfig.model_validate(options)
    weights, x = random_pairs(config, lengths)
    sides = [
        pooled(config, weights, part.double(), i % 2)
        for i, part in enumerate(torch.split(x, lengths))
    ]
    rows = []
    for a, b in zip(sides[::2], sides[1::2], strict=True):
        rows.append(torch.cat([a, b] if combine == "concat" else [a, b, (a - b).abs(), a * b]))
    expected = F.linear(
        torch.stack(rows), weights["output.weight"].double(), weights["output.bias"].double()
    )
    result = compare(config, weights, x, lengths)
    torch.testing.assert_close(result, expected.float(), atol=1e-5, rtol=1e-5)


@EVERY_POOLING
@EVERY_DTYPE
@settings(max_examples=15)
@given(lengths=LENGTHS)
def test_a_pairs_scores_do_not_depend_on_other_pairs(
    pooling: str, dtype: torch.dtype, lengths: list[int]
) -> None:
    config = HeadConfig.model_validate({"pooling": pooling})
    weights, x = random_pairs(config, lengths, dtype)
    together = compare(config, weights, x, lengths)
    start = 0
    for pair in range(len(lengths) // 2):
        own = lengths[2 * pair : 2 * pair + 2]
        alone = compare(config, weights, x[start : start + sum(own)], own)
        assert torch.equal(together[pair], alone[0])
        start += sum(own)


def test_attention_survives_scores_of_any_size() -> None:
    config = HeadConfig(pooling="attention")
    weights, x = random_pairs(config, [5, 5])
    weights["output.pool.0.score"] *= 1e4
    assert compare(config, weights, x, [5, 5]).isfinite().all()


# What is refused.


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        ("classify", {"pooling": "attention"}, "go together"),
        ("generate", {"pooling": "mean"}, "task generate has no pooling"),
        ("tag", {"pooling": "max"}, "task tag has no pooling"),
        ("encode", {"pooling": "mean"}, "task encode has no pooling"),
        ("classify", {"combine": "difference"}, "combine is for task pair"),
        ("generate", {"size": 8, "divide": 1 << 21}, "divide"),
        ("generate", {"size": 99, "cutoffs": tuple(range(1, 66)), "divide": 1}, "cutoffs"),
        ("classify", {"experts": 2}, "for task generate"),
        ("pair", {"tied": True}, "for task generate"),
        ("generate", {"size": 8, "experts": 2}, "either clusters"),
        ("generate", {"size": 8, "cutoffs": (50,), "divide": 2}, r"below vocab_size \(50\)"),
        ("generate", {"size": 8, "tied": True}, "its embedding's cutoffs"),
        ("generate", {"experts": 2, "tied": True, "latent_size": 7}, "a tied head of width 7"),
        ("generate", {"tied": True}, "width 12 needs an embedding of that width, not 16"),
    ],
)
def test_a_head_that_does_not_fit_its_network_is_refused(
    task: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        HeadConfig(**options).check(task, WORDS, STACK, EmbeddingConfig(), 16)


def test_a_mixture_of_too_many_scores_in_a_step_is_refused() -> None:
    HeadConfig(experts=15).check("generate", 267_735, STACK, EmbeddingConfig(), 16)
    with pytest.raises(ValueError, match="have 20,480,000 scores in each step"):
        HeadConfig(experts=1024).check("generate", 20_000, STACK, EmbeddingConfig(), 16)


@EVERY_HEAD
def test_a_head_that_fits_is_not(options: dict[str, Any]) -> None:
    HeadConfig(**options).check("generate", WORDS, STACK, EmbeddingConfig(), WIDTH)


def test_a_head_tied_to_an_adaptive_embedding_shares_its_clusters() -> None:
    clusters: dict[str, Any] = {"cutoffs": (10,), "size": 8}
    head = HeadConfig(**clusters, tied=True)
    head.check("generate", WORDS, STACK, EmbeddingConfig(**clusters), 16)
    with pytest.raises(ValueError, match="its embedding's cutoffs"):
        head.check("generate", WORDS, STACK, EmbeddingConfig(cutoffs=(11,), size=8), 16)
    with pytest.raises(ValidationError, match="cutoffs need size"):
        HeadConfig(cutoffs=(10,))
