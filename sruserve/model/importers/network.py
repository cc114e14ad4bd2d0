"""The embedding and the head around a stack: by their names in scripts, or by their shapes."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import ModelConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.heads.config import HeadConfig
from sruserve.model.importers.names import short
from sruserve.model.importers.tensors import matrix_of
from sruserve.model.names import Task
from sruserve.model.network import network_shapes

_MODULES = {
    "emb_layer.embedding.": "embedding.",
    "embedding_layer.embedding.": "embedding.",
    "embedding_layer.": "embedding.",
    "encoder.weight": "embedding.weight",
    "output_layer.": "output.",
    "out.": "output.",
    "decoder.": "output.",
}
_OWN = ("embedding.", "output.")
_POOLED = ("classify", "regress")
_SHOWN = 8  # tensors in a message


def vocabulary_and_head(
    tensors: Mapping[str, Tensor], task: Task, rnn: StackConfig
) -> tuple[dict[str, Tensor], int | None, HeadConfig]:
    """Convert everything but the stack.

    Modules with the names of training scripts are recognised by these, and all others by their
    shapes. A head whose weight equals the embedding's in every number is stored as tied.

    Returns the tensors by a folder's names, the number of the embedding's rows, and the head.
    """
    named = _by_name(tensors)
    own = {name: tensor for name, tensor in named.items() if name.startswith(_OWN)}
    if others := {name: tensor for name, tensor in named.items() if name not in own}:
        own |= _by_shape(others, own, task, rnn)
    table, weight = matrix_of(own, "embedding.weight"), matrix_of(own, "output.weight")
    tied = task == "generate" and table is not None and weight is not None
    if tied and (tied := torch.equal(table, weight)):  # type: ignore[arg-type]
        del own["output.weight"]
    head = HeadConfig(tied=tied, bias=weight is None or "output.bias" in own)
    if (pool := matrix_of(own, "output.pool.0.weight")) is not None:
        head = head.model_copy(update={"pooling": "attention", "latent_size": len(pool)})
    return own, None if table is None else len(table), head


def _by_name(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a folder's names for the modules of `_MODULES`."""
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module = next((theirs for theirs in _MODULES if name.startswith(theirs)), None)
        new = name if module is None else _MODULES[module] + name.removeprefix(module)
        if new in own:
            raise CheckpointError(
                f"{name[:80]} and another tensor are both {new[:80]}; keep one of them"
            )
        own[new] = tensor
    return own


def _by_shape(
    tensors: Mapping[str, Tensor], named: Collection[str], task: Task, rnn: StackConfig
) -> dict[str, Tensor]:
    """Return an embedding and a linear layer of any names by a folder's names.

    Their widths, the linear layer's bias, and "emb" in the embedding's name distinguish them.

    named: a folder's names of the tensors that are known already.

    Raises `CheckpointError` if two matrices could be the same layer, and for any other tensor.
    """
    matrices = {name: t for name, t in tensors.items() if t.dim() == 2 and task != "encode"}
    biased = {name for name in matrices if _bias_of(name) in tensors}
    embeds = {name for name in matrices if "emb" in name.lower()}
    output = embedding = None
    if "output.weight" not in named:
        inputs = _head_inputs(task, rnn)
        fitting = [name for name, t in matrices.items() if t.shape[1] in inputs]
        if task in _POOLED and not fitting:  # another pooling, whose width is checked later
            fitting = [name for name in matrices if name in biased - embeds]
        output = _one("output layer", fitting, biased, set(fitting) - embeds, tensors)
    if "embedding.weight" not in named:
        # A square matrix may also be a linear layer before the stack, unless its name says "emb".
        fitting = [
            name
            for name, t in matrices.items()
            if t.shape[1] == rnn.input_size
            and name != output
            and name not in biased
            and (name in embeds or len(t) != rnn.input_size)
        ]
        embedding = _one("embedding", fitting, embeds, set(), tensors)
    bias = None if output is None else _bias_of(output)
    names = {"embedding.weight": embedding, "output.weight": output, "output.bias": bias}
    used = {ours: name for ours, name in names.items() if name in tensors}
    if unused := {name: t for name, t in tensors.items() if name not in used.values()}:
        raise CheckpointError(_unexpected(unused, task, rnn))
    return {ours: tensors[name] for ours, name in used.items() if name is not None}


def _head_inputs(task: Task, rnn: StackConfig) -> tuple[int, ...]:
    """Return the widths that a head's inputs may have."""
    width = rnn.output_size
    if task == "pair":
        return 2 * width, 4 * width
    # The final states of all layers, side by side.
    return (width, _of_all_layers(rnn)) if task in _POOLED else (width,)


def _of_all_layers(rnn: StackConfig) -> int:
    return sum(rnn.layer_output(i) for i in range(rnn.num_layers))


def _unexpected(unused: Mapping[str, Tensor], task: Task, rnn: StackConfig) -> str:
    """Explain which tensors belong to no layer of the network."""
    shown = dict(list(unused.items())[:_SHOWN])
    names, shapes = (
        ", ".join(map(short, shown)),
        ", ".join(str(list(t.shape)) for t in shown.values()),
    )
    if len(unused) > len(shown):
        names += f" and {len(unused) - len(shown)} more"
    inputs = " or ".join(map(str, dict.fromkeys(_head_inputs(task, rnn))))
    network = (
        "a bare stack"
        if task == "encode"
        else f"an embedding ({rnn.input_size} columns), one stack and one linear layer ({inputs} "
        "columns)"
    )
    what = "is" if len(unused) == 1 else "are"
    return (
        f"{names} {what} not expected ({shapes}): task {task} needs {network}; remove tensors that "
        "the network does not use, or name its layers with --rename OLD=embedding, OLD=output"
    )


def check_width(config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` if a classifier's linear layer does not fit the pooling.

    The message lists the widths that the stack gives for each pooling.
    """
    weight, expected = tensors.get("output.weight"), network_shapes(config).get("output.weight")
    if config.task not in _POOLED or weight is None or expected is None or weight.dim() != 2:
        return
    inputs = weight.shape[1]
    if inputs == expected[1]:
        return
    rnn, last = config.rnn, config.rnn.num_layers - 1
    if rnn.pools:
        raise CheckpointError(
            f"the linear layer reads {inputs} numbers, but there are {rnn.output_size} filters, "
            "which run side by side: import convolutions side by side, not one after "
            "another"
        )
    entry, pooling = rnn.final_entries[-1], " and ".join(config.head.poolings)
    raise CheckpointError(
        f"the linear layer reads {inputs} numbers, but pooling {pooling} gives {expected[1]}: pass "
        "the pooling of the trained module in --options. Last, mean and max give "
        f'{rnn.output_size}, several such as ["last", "max", "mean"] as many for each, final with '
        f'"final": ["{entry}"] gives {rnn.layer_output(last)}, and final with the {entry[-1]} of '
        f"all {last + 1} layers {_of_all_layers(rnn)}"
    )


def _bias_of(name: str) -> str:
    return name.removesuffix("weight") + "bias"


def _one(
    what: str,
    fitting: list[str],
    first: set[str],
    second: set[str],
    tensors: Mapping[str, Tensor],
) -> str | None:
    """Return the only fitting name; if several fit, one in `first`, or else in `second`.

    Returns None if no name fits.
    """
    for preferred in (first, second):
        preferred_fits = [name for name in fitting if name in preferred]
        if len(fitting) > 1 and preferred_fits:
            fitting = preferred_fits
    if len(fitting) > 1 and not all(
        torch.equal(tensors[fitting[0]], tensors[name]) for name in fitting
    ):
        shown = ", ".join(map(short, fitting[:4]))
        raise CheckpointError(
            f'{shown}: each could be the {what}; keep one, with "emb" in the name of the '
            "embedding, or name them with --rename OLD=embedding and --rename OLD=output"
        )
    return fitting[-1] if fitting else None  # equal tensors are tied, and the head is last
