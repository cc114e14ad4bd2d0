"""Describe a model for `sruserve inspect`."""

import torch

from sruserve.kernels.devices import describe_device
from sruserve.kernels.integer_linear import multiplies_integers
from sruserve.model.errors import printable
from sruserve.model.folder import Model
from sruserve.model.placement import WHY_CPU


def facts(model: Model) -> dict[str, str]:
    """Return the lines of `sruserve inspect`, values by name, in order."""
    rnn = model.config.rnn
    arrows = "bidirectional" if rnn.bidirectional else "unidirectional"
    layers = "1 layer" if rnn.num_layers == 1 else f"{rnn.num_layers} layers"
    not_streamable_because = model.not_streamable_because
    rows = {
        "model": _name(model),
        "task": model.config.task,
        **({"description": model.config.description} if model.config.description else {}),
        "type": f"{model.config.model_type} ({', '.join(model.config.architectures)})",
        "stack": f"{layers}, {rnn.input_size} → {rnn.output_size}, {arrows}",
        "options": ", ".join(_options(model)) or "defaults",
        "parameters": f"{model.parameters:,}",
        "state": f"{model.network.state_bytes:,} bytes per stream"
        if not_streamable_because is None
        else f"none: {not_streamable_because}",
        "dtype": model.dtype,
        **_weights(model),
        "device": describe_device(model.network.device),
        "kernel": model.network.kernel,
        "exactness": model.network.exactness,
        "digest": model.digest,
    }
    if rnn.prefers_cpu and torch.cuda.is_available():
        rows["gpu"] = WHY_CPU
    rows |= _head(model) | _reader(model)
    if rnn.note is not None:
        rows["note"] = rnn.note
    if model.config.vocab_size is not None:
        kind = type(model.codec).__name__.lower() if model.codec else "ids only"
        rows["vocabulary"] = f"{model.config.vocab_size:,} ({kind})"
    if model.labels:
        rows["labels"] = ", ".join(model.labels)
    return {name: printable(value) for name, value in rows.items()}


def _name(model: Model) -> str:
    """The model's name, with its version if it was chosen among several folders."""
    if (model.path.parent.name, model.path.name) != (model.name, model.version):
        return model.name
    return f"{model.name}, version {model.version}"


def _weights(model: Model) -> dict[str, str]:
    """Describe int8 weights; empty for floats."""
    if model.config.weights is None:
        return {}
    if model.graphs or multiplies_integers(model.network.dtype, model.network.device):
        return {"weights": "int8 with a scale per output, multiplied in integers"}
    return {"weights": f"int8 with a scale per output, restored to {model.dtype} at load"}


def _head(model: Model) -> dict[str, str]:
    """Describe the layers around the stack; empty without any."""
    config, head, rows = model.config, model.config.head, {}
    if config.input_layers:
        rows["input"] = f"{config.width} → " + ", ".join(
            layer.type for layer in config.input_layers
        )
    if config.task in ("classify", "pair", "regress"):
        poolings = ("final " + " ".join(head.final) if k == "final" else k for k in head.poolings)
        rows["pooling"] = "max, in the stack" if config.rnn.pools else ", ".join(poolings)
    if config.outputs is None:
        return rows
    kind = (
        "adaptive" if head.adaptive else f"mixture of {head.experts}" if head.experts else "linear"
    )
    parts: list[str] = [layer.type for layer in head.layers]
    parts.append(f"{kind}, {config.outputs:,} outputs{'' if head.bias else ' without bias'}")
    parts += ["tied to the embedding"] if head.tied else []
    parts += [layer.type for layer in head.output_layers]
    if head.crf:
        streams = model.not_streamable_because is None
        parts.append(f"CRF with a window of {head.crf_window} steps" if streams else "CRF")
    rows["head"] = ", ".join(parts)
    if config.labels:
        rows["activation"] = config.activation
    if config.names:
        rows["values"] = ", ".join(config.names)
    return rows


def _reader(model: Model) -> dict[str, str]:
    """Describe what is around a reader's encoders; empty for other tasks."""
    reader = model.config.reader
    if reader is None:
        return {}
    layers = "1 layer" if reader.question_layers == 1 else f"{reader.question_layers} layers"
    rows = {
        "question": f"{layers}, {model.config.width} wide, merged by {reader.question_merge}",
        "word": " + ".join(reader.inputs),
    }
    if reader.features:
        rows["features"] = ", ".join(reader.features)
    if reader.needs:
        rows["needs"] = f"{', '.join(reader.needs)} with each request"
    return rows | {"answers": f"of up to {reader.max_answer_words} words"}


def _options(model: Model) -> list[str]:
    """Return the stack's options that differ from their defaults, apart from its sizes."""
    sizes = {"input_size", "hidden_size", "num_layers", "bidirectional"}
    options = model.config.rnn.model_dump(mode="json", exclude_defaults=True, exclude=sizes)
    return [name if value is True else f"{name}={value}" for name, value in options.items()]
