"""What a model is, in words."""

from sruserve.kernels import kernel_name, packed_products
from sruserve.model.folder import Model


def facts(model: Model) -> dict[str, str]:
    """What `sruserve inspect` prints, in order."""
    rnn, layout = model.config.rnn, model.network.layout
    arrows = "bidirectional" if rnn.bidirectional else "unidirectional"
    found = {
        "model": model.name,
        "task": model.config.task,
        "type": f"{model.config.model_type} ({', '.join(model.config.architectures)})",
        "stack": f"{rnn.num_layers} layers, {rnn.input_size} → {rnn.output_size}, {arrows}",
        "options": ", ".join(_options(model)) or "defaults",
        "parameters": f"{model.parameters:,}",
        "state": f"{layout.nbytes:,} bytes per stream"
        if model.network.streams
        else "none: it reads whole inputs",
        "dtype": model.dtype,
        "kernel": kernel_name(),
        "exactness": "bit for bit: any split, any batch"
        if packed_products()
        else "1e-5 (this build of torch has no packed products)",
        "digest": model.digest,
    }
    if model.config.vocab_size is not None:
        kind = type(model.codec).__name__.lower() if model.codec else "ids only"
        found["vocabulary"] = f"{model.config.vocab_size:,} ({kind})"
    if model.labels:
        found["labels"] = ", ".join(model.labels)
    return found


def _options(model: Model) -> list[str]:
    """The stack's options that are not at their defaults, apart from its sizes."""
    sizes = {"input_size", "hidden_size", "num_layers", "bidirectional"}
    told = model.config.rnn.model_dump(mode="json", exclude_defaults=True, exclude=sizes)
    return [name if value is True else f"{name}={value}" for name, value in told.items()]
