"""Small tokenizers of every kind, trained on a few sentences."""

from collections.abc import Callable
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from tokenizers.pre_tokenizers import (
    ByteLevel,
    Digits,
    Metaspace,
    Sequence,
    Split,
    WhitespaceSplit,
)
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

SENTENCES = (
    "how far is it from Denver to Aspen ?",
    "it's  3.5 miles,  isn't it?\nthey've 12345 of them",
    "to be, or not to be: that is the question",
    "naïve café, «ça va» 日本 語 привет мир",
    "be a soul; the the the far far be be",
) * 4
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(prefix: bool = False) -> Tokenizer:
    """As GPT-2; with a space before the first word, as RoBERTa."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=prefix)
    trainer = BpeTrainer(
        vocab_size=400, initial_alphabet=ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|end|>"],
    )  # fmt: skip
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def split_byte_level() -> Tokenizer:
    """As Llama 3, in normal form, with an added token that takes the space before it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    bytes_alone = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = Sequence([Split(Regex(LLAMA_3), "isolated"), bytes_alone])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True), "far"])
    return tokenizer


def metaspace(scheme: str = "first") -> Tokenizer:
    """BPE with a mark before each word."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>"], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """As T5: white space, then Metaspace."""
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """As ALBERT: Unigram whose normalizer joins runs of spaces and strips the end."""
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "\u2581"),
        ]
    )
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def llama() -> Tokenizer:
    """As Llama 2: no pre-tokenizer, a prepended mark, and bytes for unknown characters."""
    words = Tokenizer(BPE())
    words.pre_tokenizer = Metaspace()
    special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581\u2581"]
    trainer = BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    words.train_from_iterator(SENTENCES[:3], trainer)
    vocabulary = words.get_vocab()
    merges = [
        (left, right)
        for left in vocabulary
        for right in vocabulary
        if left + right in vocabulary and "\u2581" not in right and "<" not in left + right
    ]
    merges.sort(key=lambda pair: vocabulary[pair[0] + pair[1]])
    merges.append(("\u2581", "\u2581"))
    tokenizer = Tokenizer(
        BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    return tokenizer


def suffixed() -> Tokenizer:
    """BPE whose entries end words with a suffix."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    trainer = BpeTrainer(
        vocab_size=150, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT without its normalizer."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), Digits(individual_digits=True)])
    tokenizer.decoder = decoders.WordPiece()
    trainer = WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def characters() -> Tokenizer:
    """An id for each character."""
    letters = sorted(set("".join(SENTENCES[:3])))
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", *letters])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


_MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte level with a prefix": lambda: byte_level(prefix=True),
    "split byte level": split_byte_level,
    "metaspace first": metaspace,
    "metaspace always": lambda: metaspace("always"),
    "metaspace never": lambda: metaspace("never"),
    "unigram": unigram,
    "sentencepiece": sentencepiece,
    "llama": llama,
    "suffixed": suffixed,
    "word piece": word_piece,
    "characters": characters,
}
KINDS = list(_MAKERS)


@cache
def trained(kind: str) -> Tokenizer:
    """The tokenizer of a kind; do not change it."""
    return _MAKERS[kind]()
