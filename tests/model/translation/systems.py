"""Random translation systems of every kind, and how a target goes through them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sruserve.model.cells import FAMILIES
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.translation.build import make_translator, translation_shapes
from sruserve.model.translation.config import SideConfig, TranslationConfig
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.recurrent_config import RecurrentConfig
from sruserve.model.translation.transformer_config import TransformerSRUConfig
from sruserve.model.translation.translator import Translator

SOURCE, TARGET = 23, 29  # ids
BOS, EOS = 1, 2


def transformer(**options: Any) -> TransformerSRUConfig:
    """A small Transformer + SRU; `sru` options begin with `sru_`."""
    own = {name: value for name, value in options.items() if not name.startswith("sru_")}
    sru = {name[4:]: value for name, value in options.items() if name.startswith("sru_")}
    sru = {"has_skip_term": False, "hidden_size": 20} | sru
    return TransformerSRUConfig(
        **{
            "d_model": 16,
            "nhead": 2,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "sru": SRUConfig(input_size=16, num_layers=1, **sru),
            "max_source": 64,
            "max_target": 64,
        }
        | own
    )


def recurrent(family: str, attention: str, **options: Any) -> RecurrentConfig:
    """A small recurrent system; bidirectional where its family can be, unless it is `one_way`."""
    kind, fed = FAMILIES[family], options.get("input_feed", True)
    both = family != "qrnn" and not options.pop("one_way", False)
    layers = {"num_layers": 2} | ({"window": 1} if family == "qrnn" else {})
    return RecurrentConfig(
        **{
            "family": family,
            "encoder": kind(
                input_size=12, hidden_size=9 if both else 18, bidirectional=both, **layers
            ),
            "decoder": kind(input_size=10 + (18 if fed else 0), hidden_size=18, **layers),
            "source_embedding_size": 12,
            "target_embedding_size": 10,
            "attention": attention,
        }
        | options
    )


SYSTEMS: dict[str, TransformerSRUConfig | RecurrentConfig] = {
    "transformer": transformer(),
    "transformer-options": transformer(
        norm_first=True,
        bidirectional_encoder=True,
        embedding_size=12,
        embedding_scale=3.0,
        positions="learned",
        sru_use_tanh=True,
        sru_layer_norm=True,
        sru_has_skip_term=True,
    ),
    "transformer-started": transformer(encoder_starts_decoder=True, tied_output=True),
    "lstm-general": recurrent("lstm", "general"),
    "gru-dot": recurrent("gru", "dot"),
    "lrn-mlp": recurrent("lrn", "mlp"),
    "sru-mlp": recurrent("sru", "mlp", input_feed=False),
    "qrnn-general": recurrent("qrnn", "general", input_feed=False),
    "lstm-none": recurrent("lstm", "none", input_feed=False),
    "atr-dot": recurrent("atr", "dot", encoder_starts_decoder=False),
    "gru-one-way": recurrent("gru", "dot", one_way=True),
    "lstm-one-way": recurrent("lstm", "general", one_way=True, encoder_starts_decoder=False),
    "sru-one-way": recurrent("sru", "mlp", one_way=True, input_feed=False),
}


def config_of(
    system: TransformerSRUConfig | RecurrentConfig, **sides: dict[str, Any]
) -> TranslationConfig:
    """A complete config; `source` and `target` change the ids."""
    source = {"vocab_size": SOURCE} | sides.get("source", {})
    target = {"vocab_size": TARGET, "bos": BOS, "eos": EOS} | sides.get("target", {})
    return TranslationConfig(
        architectures=(f"{system.type}_for_translation",),
        source=SideConfig(**source),
        target=SideConfig(**target),
        system=system,
    )


def random_weights(config: TranslationConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors, large enough that every part of a system matters."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * (1.5 / shape[-1] ** 0.5)
        if len(shape) > 1
        else torch.randn(shape, generator=generator) * 0.4 + (0.8 if "norm" in name else 0)
        for name, shape in translation_shapes(config).items()
    }


def random_system(name: str, seed: int = 0) -> Translator:
    """One of `SYSTEMS`, with random weights."""
    config = config_of(SYSTEMS[name])
    return make_translator(config, random_weights(config, seed))


def sources(lengths: list[int], seed: int = 0) -> list[Tensor]:
    """Random sources."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, SOURCE, (length,), generator=generator) for length in lengths]


class Forced(NamedTuple):
    """What a system gives for a target that is forced on it."""

    log_probs: Tensor
    state: Tensor
    cache: Tensor
    attention: Tensor | None


def forced(
    system: Translator, memory: Memory, source: int, target: list[int], attention: bool = False
) -> Forced:
    """Run one hypothesis alone, with its cache rows in order; log_probs are (steps, ids)."""
    state, rows = memory.states[source : source + 1], []
    cache = torch.full((len(target), system.cache_width), torch.nan)
    ancestry = torch.arange(len(target), dtype=torch.int32)[None]
    for step, token in enumerate(target):
        result = system.step(
            torch.tensor([token]),
            torch.tensor([step]),
            torch.tensor([source]),
            memory,
            state,
            cache,
            ancestry,
            attention=attention,
        )
        state, cache[step] = result.state, result.cache[0]
        rows.append(result)
    shares = torch.cat([row.attention for row in rows if row.attention is not None] or [state])
    log_probs = torch.cat([row.log_probs for row in rows])
    return Forced(log_probs, state, cache, shares if attention else None)
