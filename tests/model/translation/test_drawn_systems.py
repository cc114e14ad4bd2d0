"""Translation systems of drawn options have the log-probabilities of plain formulas."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.model.translation.build import make_translator
from sruserve.model.translation.config import TranslationConfig
from sruserve.model.translation.recurrent_config import SERVED, RecurrentConfig
from sruserve.model.translation.transformer_config import TransformerSRUConfig
from tests.model.translation import formulas
from tests.model.translation.systems import (
    TARGET,
    config_of,
    forced,
    random_weights,
    recurrent,
    transformer,
)

FLAGS = st.booleans()


@st.composite
def recurrent_systems(draw: st.DrawFn) -> RecurrentConfig:
    family, shared, tied = draw(st.sampled_from(SERVED)), draw(FLAGS), draw(FLAGS)
    both, fed, starts = family != "qrnn" and draw(FLAGS), draw(FLAGS), draw(FLAGS)
    layers = draw(st.integers(1, 2))
    target = 18 if tied else 10
    source = target if shared else 12
    more: dict[str, Any] = {"window": 1} if family == "qrnn" else {}
    encoder = {
        "input_size": source, "hidden_size": 9 if both else 18, "bidirectional": both,
        "num_layers": layers, **more,
    }  # fmt: skip
    decoder = {
        "input_size": target + (18 if fed else 0), "hidden_size": 18,
        "num_layers": layers if starts else draw(st.integers(1, 2)), **more,
    }  # fmt: skip
    return recurrent(
        family,
        draw(st.sampled_from(["dot", "general", "mlp", "none"])),
        encoder=encoder,
        decoder=decoder,
        source_embedding_size=source,
        target_embedding_size=target,
        input_feed=fed,
        encoder_starts_decoder=starts,
        shared_embeddings=shared,
        tied_output=tied,
        output_bias=draw(FLAGS),
    )


@st.composite
def transformers(draw: st.DrawFn) -> TransformerSRUConfig:
    starts, tied = draw(FLAGS), draw(FLAGS)
    layers = draw(st.integers(1, 3))
    return transformer(
        nhead=draw(st.sampled_from([1, 2, 4])),
        num_encoder_layers=layers,
        num_decoder_layers=layers if starts else draw(st.integers(1, 2)),
        norm_first=draw(FLAGS),
        bidirectional_encoder=not starts and draw(FLAGS),
        encoder_starts_decoder=starts,
        embedding_size=None if tied else draw(st.sampled_from([None, 12, 16])),
        embedding_scale=draw(st.sampled_from([1.0, 3.0])),
        positions=draw(st.sampled_from(["sinusoidal", "learned", "none"])),
        shared_embeddings=draw(FLAGS),
        tied_output=tied,
        output_bias=draw(FLAGS),
        sru_hidden_size=draw(st.sampled_from([8, 16, 20])),
        sru_use_tanh=draw(FLAGS),
        sru_layer_norm=draw(FLAGS),
        sru_has_skip_term=draw(FLAGS),
    )


IDS = st.lists(st.integers(0, TARGET - 1), min_size=1, max_size=5).map(torch.tensor)


def check(config: TranslationConfig, expected: Any, source: Any, target: Any, seed: int) -> None:
    tensors = random_weights(config, seed)
    system = make_translator(config, tensors)
    ours = forced(system, system.encode([source]), 0, target.tolist()).log_probs
    theirs = expected(config.system, tensors, source, target)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@settings(max_examples=16)
@given(system=recurrent_systems(), source=IDS, target=IDS, seed=st.integers(0, 9))
def test_an_encoder_and_decoder_of_any_options_agrees_with_the_formulas(
    system: RecurrentConfig, source: Any, target: Any, seed: int
) -> None:
    config = config_of(system, source={"vocab_size": TARGET})
    check(config, formulas.recurrent, source, target, seed)


@settings(max_examples=16)
@given(system=transformers(), source=IDS, target=IDS, seed=st.integers(0, 9))
def test_a_transformer_with_srus_of_any_options_agrees_with_the_formulas(
    system: TransformerSRUConfig, source: Any, target: Any, seed: int
) -> None:
    config = config_of(system, source={"vocab_size": TARGET})
    check(config, formulas.transformer, source, target, seed)
