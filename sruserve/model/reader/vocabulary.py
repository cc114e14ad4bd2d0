"""The tokenizer of a reader: words by a regular expression, with their places in the text."""

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFD, Lowercase, Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Split

# Runs of letters, digits and their marks; any other visible character alone.
WORDS = r"[\p{L}\p{N}\p{M}]+|[^\s\p{Z}\p{C}]"


def word_tokenizer(entries: Sequence[str], unknown: str, lowercase: bool = False) -> bytes:
    """Return a tokenizer.json of words in id order.

    A word is looked up in Unicode's form NFD, as DrQA's dictionaries have it.

    unknown: the entry of words that have none. lowercase: words are looked up in lower case.
    """
    numbers = {entry: i for i, entry in enumerate(entries)}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token=unknown))
    steps: list[Normalizer] = [NFD(), Lowercase()] if lowercase else [NFD()]
    tokenizer.normalizer = Normalizers(steps)
    tokenizer.pre_tokenizer = Split(Regex(WORDS), "removed", invert=True)
    return bytes(tokenizer.to_str(pretty=False).encode())
