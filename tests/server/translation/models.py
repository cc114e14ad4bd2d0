"""Model folders of small random translation systems."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

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


def single_bytes(count: int) -> bytes:
    """A tokenizer.json of `count` ids: bytes of é and a letter in turn, after the special ones."""
    letters = "".join(chr(ord("a") + i) for i in range(count - len(SPECIAL) - 2))
    vocabulary = {entry: i for i, entry in enumerate([*SPECIAL, "Ã", "©", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return bytes(tokenizer.to_str().encode())


def save_random_system(
    folder: Path,
    name: str = "transformer",
    seed: int = 0,
    end: float = 1.5,
    *,
    writes_bytes: bool = False,
) -> TranslationModel:
    """A folder with one of `SYSTEMS`, and words as vocabularies.

    end: added to the score of the end token, so that translations end after some tokens.
    writes_bytes: the target's ids are single bytes, most often those of é.
    """
    config = config_of(SYSTEMS[name], source={"bos": BOS, "eos": EOS, "unk": 0}, target={"unk": 0})
    target = single_bytes(TARGET) if writes_bytes else words("b", TARGET)
    vocabulary = {"source.json": words("a", SOURCE), "target.json": target}
    weights = random_weights(config, seed)
    weights["output.weight"] *= 3  # so that scores depend on the source and on what is written
    weights["output.bias"][EOS] += end
    if writes_bytes:
        weights["output.bias"][len(SPECIAL) : len(SPECIAL) + 2] += 1
    return save_translation(folder, config, weights, vocabulary)
