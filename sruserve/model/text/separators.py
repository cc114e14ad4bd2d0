"""The characters at which a tokenizer reads words by themselves, proven by its parts.

A text's ids are those of its words, one after the other, if between any two words

- the normalizers map each side by itself: they map characters, or replace texts that no white space
  is in, or white space by white space,
- no pre-tokenizer before the one that splits at white space looks across it,
- no added token has white space inside, and none takes what is beside it into itself.

A pre-tokenizer after the split sees one word at a time, so it may be any.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from tokenizers import Tokenizer

from sruserve.model.text.cuts import CHARACTER_MAPS
from sruserve.model.text.decoders import Step, steps_of
from sruserve.model.text.patterns import alternatives, is_simple

_SPACES = " \t\n\v\f\r"
_CHARACTER_SPLITS = {"Punctuation", "Digits"}
# Some expressions join a mark and the letters after it, but not after a space.
_PROBES = ("ab cd", 'it\'s 3.5\n"x"', "A\tb.c,  d ", 'ab "cd', "ab (cd", "ab -cd")
_PROBED = 64  # entries at the beginning and at the end that are probed together


class _Reach(Enum):
    """What a pre-tokenizer does at white space."""

    ALL = auto()  # it splits at all white space, and drops it
    SOME = auto()  # it splits at these separators, and drops them
    NONE = auto()  # it does not look across these separators


def separators(tokenizer: Tokenizer, entries: Sequence[str]) -> str:
    """Return the white space at which words are read by themselves; "" if that is not proven."""
    own = " ".join(dict.fromkeys([*entries[:_PROBED], *entries[-_PROBED:]]))
    spaces = "".join(space for space in _SPACES if _splits_at(tokenizer, space, own))
    if " " not in spaces:
        return ""
    reach = _reach(steps_of(tokenizer.pre_tokenizer), spaces)
    if reach is _Reach.NONE:
        return ""
    drops_all = reach is _Reach.ALL
    for step in steps_of(tokenizer.normalizer):
        if not _normalizes_words(step, spaces, drops_all):
            return ""
    if not _adds_words(tokenizer, drops_all):
        return ""
    return "" if any(_joins(tokenizer, probe, spaces) for probe in (*_PROBES, own)) else spaces


def _reach(steps: Sequence[Step], spaces: str) -> _Reach:
    """What the pre-tokenizers do, up to the first one that splits at white space."""
    for step in steps:
        reach = _reach_of(step, spaces)
        if reach is not _Reach.NONE:
            return reach
        if not _splits_words(step, spaces):
            return _Reach.NONE
    return _Reach.NONE


def _reach_of(step: Step, spaces: str) -> _Reach:
    match step["type"]:
        case "WhitespaceSplit" | "Whitespace" | "BertPreTokenizer":
            return _Reach.ALL
        case "CharDelimiterSplit":
            return _Reach.SOME if step["delimiter"] in spaces else _Reach.NONE
        case "Split" if step["behavior"] == "Removed":
            return _Reach.SOME if _drops(step, spaces) else _Reach.NONE
    return _Reach.NONE


def _drops(step: Step, spaces: str) -> bool:
    """Whether a pre-tokenizer that removes pieces removes all separators, and looks no farther."""
    text, pattern = step["pattern"].get("String"), step["pattern"].get("Regex", "")
    if text is not None:
        return text == " " == spaces and not step["invert"]
    if not is_simple(pattern):
        return False
    parts = list(alternatives(pattern))
    if step["invert"]:
        return not any(part.matches(spaces) for part in parts)
    dropping = [part for part in parts if part.matches(spaces)]
    return all(any(part.matches(space) for part in dropping) for space in spaces) and all(
        part.is_one_kind for part in dropping
    )


def _splits_words(step: Step, spaces: str) -> bool:
    """Whether a pre-tokenizer splits each word as it would alone; white space is split later."""
    if step["type"] != "Split":
        return step["type"] in _CHARACTER_SPLITS or step["type"] == "CharDelimiterSplit"
    text, pattern = step["pattern"].get("String"), step["pattern"].get("Regex", "")
    if text is not None:
        return bool(text) and not _has(text, spaces)
    return is_simple(pattern) and all(
        part.is_one_kind or not part.matches(spaces) for part in alternatives(pattern)
    )


def _normalizes_words(step: Step, spaces: str, drops_all: bool) -> bool:
    """Whether a normalizer maps each word as it would alone.

    drops_all: white space that is not in `spaces` is no part of a word either.
    """
    if step["type"] == "Strip":
        return drops_all
    if step["type"] != "Replace":
        return step["type"] in CHARACTER_MAPS
    content, text = step["content"], step["pattern"].get("String")
    separates = bool(content) and all(character in spaces for character in content)
    if text is not None:
        if separates and text and all(character in spaces for character in text):
            return True
        return bool(text) and not _has(text, spaces)
    pattern = step["pattern"]["Regex"]
    return is_simple(pattern) and all(
        (separates and part.is_one_kind) or not part.matches(spaces)
        for part in alternatives(pattern)
    )


def _adds_words(tokenizer: Tokenizer, drops_all: bool) -> bool:
    """Whether each added token is found within a word, as it would be in the word alone."""
    normalizer = tokenizer.normalizer
    for token in tokenizer.get_added_tokens_decoder().values():
        contents = [token.content]
        if token.normalized and normalizer is not None:
            contents.append(normalizer.normalize_str(token.content))
        if any(map(str.isspace, "".join(contents))):
            return False
        if (token.lstrip or token.rstrip) and not drops_all:
            return False
    return True


def _has(text: str, characters: str) -> bool:
    return any(character in characters for character in text)


def _splits_at(tokenizer: Tokenizer, space: str, own: str) -> bool:
    """Whether the tokenizer splits its own words, and any others, at this character.

    It may also delete the character, and join what is beside it.
    """
    probes = ("ab cd".replace(" ", space), own.replace(" ", space))
    if any(_joins(tokenizer, probe, space) for probe in probes):
        return False
    try:
        encoding = tokenizer.encode(f"ab{space}cd", add_special_tokens=False)
    except Exception:  # these words have no entry
        return True
    tokens = list(zip(encoding.word_ids, encoding.offsets, strict=True))
    before = {word for word, (begin, _) in tokens if begin < len("ab")}
    after = {word for word, (_, end) in tokens if end > len("ab ")}
    return space == " " or not before & after


def _joins(tokenizer: Tokenizer, probe: str, spaces: str) -> bool:
    """Whether a text's ids differ from those of its words; skips words that have no entry."""
    ids: list[int] = []

    def known(word: re.Match[str]) -> str:
        try:
            ids.extend(tokenizer.encode(word[0], add_special_tokens=False).ids)
        except Exception:  # the library raises bare exceptions
            return ""
        return word[0]

    text = words_of(spaces).sub(known, probe)
    return bool(tokenizer.encode(text, add_special_tokens=False).ids != ids)


def words_of(spaces: str) -> re.Pattern[str]:
    """The expression of a word between these separators."""
    return re.compile(f"[^{re.escape(spaces)}]+")
