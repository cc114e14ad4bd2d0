"""The embedding of words, with the features of their characters if the network has these."""

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.files import memory_bytes, read_regular
from sruserve.model.importers.lrn_tf.variables import ADVICE, FROZEN, Variables

SPECIAL = ("<pad>", "<unk>", "<eos>")
PADDING, UNKNOWN = 0, 1
TABLES = {"special_symbol_embeddings", FROZEN}
CHARACTERS = {"char_embeddings", "char_encoding/cmap/W_0_0", "char_encoding/cmap/b_0"}
_MATRICES = 4  # of (words, width) in memory, while the features are computed
_SPACE = " \t\n\r\v\f"


def embedding(variables: Variables) -> Tensor:
    """Return the rows of all words; that of padding is zeros."""
    words, width = _sizes(variables, FROZEN)
    special = variables.read("special_symbol_embeddings", len(SPECIAL), width)
    special[PADDING] = 0
    return torch.cat((special, variables.read(FROZEN, words, width)))


def characters(variables: Variables, words: list[str], chars: list[str], longest: int) -> Tensor:
    """Return the features of each word's characters, (words, width).

    They are a linear map of the largest numbers of the characters' rows. The repository fills a
    word with zeros up to `longest` characters, and these count, too.
    """
    count, width = _sizes(variables, "char_embeddings")
    if len(chars) != count:
        raise CheckpointError(
            f"vocab.char has {len(chars)} entries, but char_embeddings has {count} rows: use the "
            "file that this training wrote"
        )
    if (size := _MATRICES * 4 * width * len(words)) > memory_bytes() // 2:
        raise CheckpointError(
            f"the features of the characters of {len(words):,} words, {width:,} for each, take "
            f"{size:,} bytes, more than half of this machine's memory: import it on a larger "
            "machine"
        )
    table = variables.read("char_embeddings", count, width)
    weight = variables.read("char_encoding/cmap/W_0_0", width, width)
    bias = variables.read("char_encoding/cmap/b_0", width)
    ids, largest = {char: i for i, char in enumerate(chars)}, torch.zeros(len(words), width)
    for row, word in enumerate(words):
        spelt = [ids.get(char, UNKNOWN) for char in word[:longest]]
        if row not in (PADDING, UNKNOWN) and spelt:
            rows = table[torch.tensor(spelt)].amax(0)
            largest[row] = rows if len(spelt) == longest else rows.clamp(min=0)
    features = largest @ weight + bias
    features[PADDING] = 0
    return features


def read_entries(folders: Iterable[Path], name: str, lower: bool = False) -> list[str]:
    """Return the entries of a vocabulary that the training wrote, in id order.

    folders: where the file may be; the first one that has it counts.
    """
    tried = [folder / name for folder in folders]
    path = next((path for path in tried if os.path.exists(path)), None)
    if path is None:
        raise CheckpointError(
            f"the network reads the characters of words (use_char): copy {name}, as the "
            f"training wrote it, to {tried[0]}"
        )
    try:
        text = read_regular(path).decode()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path} is not UTF-8; use the file that the training wrote"
        ) from error
    lines = [line.strip(_SPACE) for line in text.removesuffix("\n").split("\n")]
    return list(dict.fromkeys([*SPECIAL, *(line.lower() if lower else line for line in lines)]))


def _sizes(variables: Variables, name: str) -> tuple[int, int]:
    shape = variables.shape(name)
    if len(shape) != 2 or not all(shape):
        raise CheckpointError(
            f"{name} has shape {list(shape)}; it must be a matrix, not empty. {ADVICE}"
        )
    return shape[0], shape[1]
