"""Put the weights of a recurrent module into the one block that cuDNN reads."""

import torch
from torch.backends.cudnn import rnn


def flatten_weights(module: torch.nn.RNNBase) -> None:
    """Make a module's weights on a GPU views of one block, in bfloat16 too.

    `flatten_parameters` passes over bfloat16, so cuDNN would copy all weights at every call. A
    torch that has changed the private operator still computes right, and copies them.
    """
    module.flatten_parameters()
    weights = [each for each in module._flat_weights if isinstance(each, torch.Tensor)]
    first = weights[0]
    if first.dtype != torch.bfloat16 or first.device.type != "cuda":
        return
    per_layer = (4 if module.bias else 2) + (module.proj_size > 0)
    try:
        mode = rnn.get_cudnn_mode(module.mode)  # type: ignore[no-untyped-call]
        with torch.cuda.device(first.device), torch.no_grad():
            torch._cudnn_rnn_flatten_weight(
                weights, per_layer, module.input_size, mode,
                module.hidden_size, module.proj_size, module.num_layers, module.batch_first,
                module.bidirectional,
            )  # fmt: skip
    except (AttributeError, TypeError, RuntimeError):
        return
