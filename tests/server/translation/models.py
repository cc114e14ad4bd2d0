"""Model folders of small random translation systems."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from sruserve.model.translation.folder import TranslationModel, save_translation
from tests.model.translation.systems import (
    BOS,
    EOS,
    SOURCE,
    SYSTEMS,
    TARGET,
    config_of,
    random_weights,
)

SPECIAL = ["<unk>", "<s>", "</s>"]


def words(letter: str, count: int) -> bytes:
    """A tokenizer.json of `count` words, such as a3, after the special ones."""
    entries = [*SPECIAL, *(f"{letter}{i}" for i in range(len(SPECIAL), count))]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(entries)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return bytes(tokenizer.to_str().encode())


def save_random_system(
    folder: Path, name: str = "transformer", seed: int = 0, end: float = 1.5
) -> TranslationModel:
    """A folder with one of `SYSTEMS`, and words as vocabularies.

    end: added to the score of the end token, so that translations end after some tokens.
    """
    config = config_of(SYSTEMS[name], source={"bos": BOS, "eos": EOS, "unk": 0}, target={"unk": 0})
    vocabulary = {"source.json": words("a", SOURCE), "target.json": words("b", TARGET)}
    weights = random_weights(config, seed)
    weights["output.weight"] *= 3  # so that scores depend on the source and on what is written
    weights["output.bias"][EOS] += end
    return save_translation(folder, config, weights, vocabulary)
