"""Describe a translation system for `sruserve inspect`."""

from sruserve.kernels import kernel_name
from sruserve.kernels.devices import CPU, describe_device
from sruserve.model.errors import printable
from sruserve.model.translation.config import SideConfig
from sruserve.model.translation.folder import TranslationModel
from sruserve.model.translation.recurrent_config import RecurrentConfig


def translation_facts(model: TranslationModel) -> dict[str, str]:
    """Return the lines of `sruserve inspect`, values by name, in order."""
    config, translator = model.config, model.translator
    system = config.system
    if isinstance(system, RecurrentConfig):
        kind = f"{system.family} with {system.attention} attention"
        fed = ", input feeding" if system.input_feed else ""
        sides = f"{system.encoder.num_layers} and {system.decoder.num_layers} layers{fed}"
        width = f"{system.memory_width} features"
    else:
        kind = "Transformer with SRU layers"
        sides = f"{system.num_encoder_layers} and {system.num_decoder_layers} layers"
        width = f"{system.d_model} features, {system.nhead} heads, inner {system.sru.output_size}"
    texts = model.source_text is not None
    rows = {
        "model": model.name,
        "task": config.task,
        **({"description": config.description} if config.description else {}),
        "type": f"{kind} ({', '.join(config.architectures)})",
        "layers": f"{sides}, {width}",
        "parameters": f"{model.parameters:,}",
        "source": _side(config.source, translator.max_source, texts),
        "target": _side(config.target, translator.max_target, texts),
        "memory": f"{translator.memory_width * 4:,} bytes per id of a source",
        "state": f"{translator.state_width * 4:,} bytes per hypothesis, and "
        f"{translator.cache_width * 4:,} for each of its steps",
        "chunks of sources": "none: " + translator.whole_because
        if translator.whole_because is not None
        else f"by wait-k, {translator.encoder_width * 4:,} bytes of the encoder between two",
        "dtype": model.dtype,
        "device": describe_device(CPU),
        "kernel": kernel_name(CPU),
        "exactness": translator.exactness,
        "digest": model.digest,
    }
    return {name: printable(value) for name, value in rows.items()}


def _side(side: SideConfig, longest: int | None, texts: bool) -> str:
    limit = "any length" if longest is None else f"up to {longest:,} ids"
    return f"{side.vocab_size:,} {'entries' if texts else 'ids only'}, {limit}"
