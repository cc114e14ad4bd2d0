"""The word tokenizer of the classifier: one definition for training and serving.

Text as people type it and text as TREC spells it give the same ids: quotes in every style are one
quote, words and punctuation marks are separate tokens, every digit is a 0. No rule joins or looks
across white space, so a stream may be cut at any white space.
"""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

UNKNOWN = "<oov>"
SPELLINGS = [
    (r"[\s\p{Z}\p{C}]", " "),
    ("``|''|[\u201c\u201d\u201e\u00ab\u00bb]", '"'),
    ("[`\u2018\u2019\u00b4]", "'"),
]


def normalizer() -> normalizers.Normalizer:
    """One spelling for quotes, case, digits and compatible characters."""
    spellings = [normalizers.Replace(Regex(pattern), to) for pattern, to in SPELLINGS]
    digits = normalizers.Replace(Regex(r"\d"), "0")
    return normalizers.Sequence([*spellings, normalizers.NFKC(), normalizers.Lowercase(), digits])


def splitter() -> pre_tokenizers.PreTokenizer:
    """Every run of letters and digits is a token, and so is every other visible character."""
    return pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)


def build(texts: Iterable[str], least: int) -> Tokenizer:
    """A tokenizer of the words that occur at least `least` times in `texts`."""
    spell, split = normalizer(), splitter()
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in split.pre_tokenize_str(spell.normalize_str(text)))
    known = sorted(word for word, count in words.items() if count >= least)
    ids = {word: index for index, word in enumerate([UNKNOWN, *known])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = spell, split
    return tokenizer


def check(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Raise `ValueError` unless pieces between white space tokenize as the whole text does."""
    for text in texts:
        whole = tokenizer.encode(text).ids
        pieces = [tokenizer.encode(piece).ids for piece in text.split()]
        if whole != [index for piece in pieces for index in piece]:
            raise ValueError(f"the tokenizer looks across white space in {text!r}")
