"""One small network for each family, option, pooling and head that graphs must express."""

from typing import Any

from sruserve.model.config import ModelConfig
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.regression import Regression
from sruserve.model.names import Task
from tests.model.test_families import FORMS
from tests.support import random_config

_LABELS = ("yes", "no", "maybe")
_CLUSTERS: dict[str, Any] = {"size": 16, "cutoffs": (8, 20), "divide": 2}
_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "tanh", "sigmoid", "silu", "softplus", "elu")
_BOTH_WAYS = ("sru", "srupp", "lrn", "qrnn", "lstm", "gru", "rnn")
_ONE_WAY = ("srupp-in-chunks", "lrn-rms", "qrnn-window-2", "qrnn-no-gate")

STACKS: dict[str, dict[str, Any]] = {
    **FORMS,
    "sru-updated-reset": {"reset_gate": "updated", "use_tanh": True, "rescale": True},
    "sru-projected-input": {"proj_input_to_hidden_first": True, "layer_norm": True},
    "sru-without-skip": {"has_skip_term": False},
    "srupp-normed-after": {"proj_size": 8, "window": 3, "attn_layer_norm": True},
    "gru-without-bias": {"bias": False},
    "rnn-tanh": {},
    "atr-tanh": {},
}
BOTH_WAYS = {
    f"{form}-both-ways": {**options, "bidirectional": True, "window": None}
    for form, options in STACKS.items()
    if form.split("-")[0] in _BOTH_WAYS and form not in _ONE_WAY
}


def _attention() -> tuple[Any, ...]:
    return (
        {"type": "linear", "size": 5},
        {"type": "activation", "function": "tanh"},
        {"type": "linear", "size": 1, "bias": False},
    )


def _row_layers() -> tuple[Any, ...]:
    inner = [{"type": "linear", "size": 24}, {"type": "activation", "function": "gelu"}]
    return (
        {"type": "layer_norm", "eps": 1e-3},
        {"type": "scale"},
        {"type": "residual", "layers": inner},
        {"type": "select", "ranges": [(3, 9), (0, 2)]},
        *({"type": "activation", "function": name} for name in _ACTIVATIONS),
        {"type": "activation", "function": "leaky_relu", "slope": 0.2},
    )


def _regression(names: tuple[str, ...], **options: Any) -> dict[str, Any]:
    return {"regression": Regression(names=names, **options)}


_WORDS: dict[str, Any] = {"labels": _LABELS, "vocab_size": 11}
_HEADS: dict[str, tuple[Task, dict[str, Any]]] = {
    "classify-last": ("classify", {**_WORDS}),
    "classify-mean": ("classify", {**_WORDS, "head": HeadConfig(pooling="mean")}),
    "classify-max": ("classify", {**_WORDS, "head": HeadConfig(pooling="max")}),
    "classify-several": (
        "classify",
        {
            **_WORDS,
            "head": HeadConfig(pooling=("last", "max", "final", "mean"), final=("1.c",)),
        },
    ),
    "classify-final": (
        "classify",
        {
            **_WORDS,
            "model_type": "lstm",
            "bidirectional": True,
            "head": HeadConfig(pooling="final", final=("0.h", "1.c"), activation="sigmoid"),
        },
    ),
    "classify-attention": (
        "classify",
        {**_WORDS, "head": HeadConfig(pooling="attention", attention=_attention())},
    ),
    "classify-attention-both-ways": (
        "classify",
        {
            **_WORDS,
            "bidirectional": True,
            "head": HeadConfig(pooling="attention", attention=_attention()),
        },
    ),
    "classify-attention-beside-final": (
        "classify",
        {
            **_WORDS,
            "model_type": "lrn",
            "bidirectional": True,
            "head": HeadConfig(pooling="attention", attention=_attention(), attention_final=True),
        },
    ),
    "classify-row-layers": ("classify", {**_WORDS, "head": HeadConfig(layers=_row_layers())}),
    "classify-features": (
        "classify",
        {"labels": _LABELS, "input_width": 5, "input_layers": ({"type": "linear", "size": 16},)},
    ),
    "tag": ("tag", {**_WORDS, "head": HeadConfig(activation="none")}),
    "tag-crf": ("tag", {**_WORDS, "head": HeadConfig(crf=True), "bidirectional": True}),
    "tag-crf-one-way": ("tag", {**_WORDS, "head": HeadConfig(crf=True)}),
    "regress": ("regress", _regression(("speed", "load"))),
    "regress-every-step": ("regress", _regression(("speed",), steps="every")),
    "generate": ("generate", {"vocab_size": 11}),
    "generate-tied": (
        "generate",
        {
            "vocab_size": 11,
            "hidden_size": 16,
            "head": HeadConfig(tied=True),
            "embedding": EmbeddingConfig(scale=2.0),
        },
    ),
    "generate-mixture": (
        "generate",
        {"vocab_size": 11, "head": HeadConfig(experts=3, latent_size=7)},
    ),
    "generate-adaptive": (
        "generate",
        {
            "vocab_size": 30,
            "head": HeadConfig(**_CLUSTERS),
            "embedding": EmbeddingConfig(**_CLUSTERS),
        },
    ),
    **{
        f"pair-{pooling}": (
            "pair",
            {
                **_WORDS,
                "bidirectional": True,
                "head": HeadConfig(pooling=pooling, combine="difference"),
            },
        )
        for pooling in ("last", "mean", "max", "attention")
    },
}
NAMES = (*STACKS, *BOTH_WAYS, *_HEADS)


def config_of(name: str) -> ModelConfig:
    """The network of a name."""
    if name in _HEADS:
        task, options = _HEADS[name]
        return random_config(task, **options)
    options = {**STACKS, **BOTH_WAYS}[name]
    if not name.startswith("srupp"):
        options = {key: value for key, value in options.items() if value is not None}
    sizes = {"input_size": 6, "hidden_size": 10}
    return random_config("encode", model_type=name.split("-")[0], **{**sizes, **options})
