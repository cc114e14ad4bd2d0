"""What describes a word to a reader of DrQA, in the order of its document encoder's columns.

In the release, a word is its embedding, its aligned question embedding and its features, whose
names are in the file's `feature_dict`. In the re-implementations, it is its embedding, four
features, its aligned question embedding, and embeddings of its tags; in the later versions of
hitvoice/DrQA, each tag is a column of its own, which is an embedding by the identity.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import agree, shown
from sruserve.model.importers.tensors import need
from sruserve.model.reader.config import FREQUENCY, IN_QUESTION, MAX_FEATURES, TAGS

_RELEASE: tuple[str, ...] = ("words", "aligned", "features")
_AGAIN: tuple[str, ...] = ("words", "features", "aligned", *TAGS)


def describe_words(
    own: dict[str, Any], values: Mapping[str, Any], width: int, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the options with `inputs` and `features`, by the file or the number of columns.

    own: the options. values: what the file has beside the tensors. width: of the embedding.
    """
    named = values.get("feature_dict")
    names = {tag: f"{tag}_embedding.weight" for tag in TAGS}
    tables = {tag: need(tensors, name, 2) for tag, name in names.items() if name in tensors}
    present = {"words", "features", *tables}
    if "qemb_match.linear.weight" in tensors:
        present.add("aligned")
    if named is not None:
        own = agree(own, {"features": _in_order(named)})
        order = _RELEASE
    elif "config" in values or tables:
        order = _AGAIN
    elif "inputs" not in own and "aligned" in present:
        raise OptionError(
            'the file does not say in which order a word is described: pass "inputs" in --options, '
            f"{list(_RELEASE)} for facebookresearch/DrQA, {list(_AGAIN[:3])} for hitvoice/DrQA"
        )
    else:
        order = _RELEASE
    columns = _columns(tensors) - width * (1 + ("aligned" in present))
    columns -= sum(table.shape[1] for table in tables.values())
    if "features" not in own:
        defaults = (*IN_QUESTION, FREQUENCY)
        if columns not in (0, len(defaults)):
            raise OptionError(
                f'a word has {columns} features, and the file does not name them: pass "features" '
                "in --options, in order"
            )
        own["features"] = defaults[:columns]
    if not isinstance(own["features"], list | tuple):
        raise OptionError(
            f"--options: features is {shown(own['features'])}; it must be a list of the features' "
            "names, in order"
        )
    if len(own["features"]) != columns:
        raise CheckpointError(
            f"{len(own['features'])} features are named, but the document's encoder reads "
            f"{columns}: "
            'pass "features" in --options with one name for each'
        )
    if not columns:
        present.discard("features")
    own.setdefault("inputs", tuple(part for part in order if part in present))
    return own


def with_tag_columns(tensors: Mapping[str, Tensor], saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """Add an embedding by the identity for tags that are columns; saved: the file's arguments."""
    result = dict(tensors)
    for tag in TAGS:
        size = saved.get(f"{tag}_size")
        if saved.get(tag) is True and isinstance(size, int) and 0 < size <= MAX_FEATURES:
            result.setdefault(f"{tag}_embedding.weight", torch.eye(size))
    return result


def _columns(tensors: Mapping[str, Tensor]) -> int:
    """The width of what the document's encoder reads."""
    if "doc_rnn.rnns.0.weight_ih_l0" in tensors:
        return need(tensors, "doc_rnn.rnns.0.weight_ih_l0", 2).shape[1]
    projected = "doc_rnn.rnns.0.weight_proj"
    name = projected if projected in tensors else "doc_rnn.rnns.0.weight"
    return need(tensors, name, 2).shape[0]


def _in_order(named: Any) -> tuple[str, ...]:
    """The names of features in the order of their numbers."""
    if not isinstance(named, Mapping) or not all(type(i) is int for i in named.values()):
        raise CheckpointError(
            "feature_dict is no dict of names and their numbers: save the dict of the training in "
            "it"
        )
    names = sorted(named, key=named.__getitem__)
    if [named[name] for name in names] != list(range(len(names))):
        raise CheckpointError(
            "feature_dict must number its features from 0 without gaps: save the dict of the "
            "training in it"
        )
    return tuple(map(str, names))
