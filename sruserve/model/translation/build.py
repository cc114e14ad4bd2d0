"""Translation systems from their description and tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.model.cells.stack import Builder, Shapes
from sruserve.model.translation.config import TranslationConfig
from sruserve.model.translation.recurrent import RecurrentTranslator
from sruserve.model.translation.recurrent_config import RecurrentConfig
from sruserve.model.translation.transformer_sru import TransformerSRU
from sruserve.model.translation.translator import Translator


def translation_shapes(config: TranslationConfig) -> Shapes:
    """Return the shapes of a model folder's weights, by tensor name."""
    return config.system.shapes(config.source.vocab_size, config.target.vocab_size)


def make_translator(config: TranslationConfig, tensors: Mapping[str, Tensor]) -> Translator:
    """Build a translation system from tensors that `translation_shapes` names."""
    system, builder = config.system, Builder(torch.float32, CPU)
    sizes = (config.source.vocab_size, config.target.vocab_size)
    if isinstance(system, RecurrentConfig):
        return RecurrentTranslator(system, tensors, *sizes, builder)
    return TransformerSRU(system, tensors, *sizes, builder)
