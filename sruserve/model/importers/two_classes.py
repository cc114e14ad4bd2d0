"""A head with one output, the logit of the second of two classes."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from sruserve.model.errors import OptionError
from sruserve.model.importers.format import Imported
from sruserve.model.importers.tensors import matrix_of


def with_two_classes(imported: Imported, labels: Sequence[str] | None) -> Imported:
    """Store a binary logit z as the scores [0, z]: their softmax is [1 - sigmoid(z), sigmoid(z)].

    labels: the names of target 0 and target 1; None without `--labels`.

    Returns a network with more outputs unchanged. Raises `OptionError` without two labels.
    """
    weight, bias = matrix_of(imported.tensors, "output.weight"), imported.tensors.get("output.bias")
    if weight is None or len(weight) != 1:
        return imported
    if labels is None or len(labels) != 2:
        raise OptionError(
            "the head has one output, which softmax makes 1 in any case. It is a binary logit, "
            "trained with BCEWithLogitsLoss (give two labels in --labels, that of target 0 first); "
            'or a label that may apply or not (pass "activation": "sigmoid" in --options); or a '
            "number to predict (use --task regress)"
        )
    own = {"output.weight": torch.cat((torch.zeros_like(weight), weight))}
    if bias is not None:
        own["output.bias"] = torch.cat((torch.zeros_like(bias), bias))
    return replace(imported, tensors=imported.tensors | own)
