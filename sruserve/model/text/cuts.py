"""Where a tokenizer.json lets a text be cut so that no id changes, proven by its parts.

A text is cut between a character that is no white space and a space. This is safe if

- its normalizers map both sides by themselves: they map characters, or replace runs of spaces,
- a pre-tokenizer splits there, whatever surrounds the place, and those before it split locally;
  or there is none, and no entry of a BPE has a space after another character,
- no added token has a space inside, takes the white space after it, or is a single word that
  begins with a space.

If a normalizer prepends a space to each text, the space at the cut is left out: the normalizer adds
it again. What follows that space must then be known, and no added token. Nor may one come
before it, since a text is normalized anew after an added token and gets a second space there.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from sruserve.model.text.decoders import SPACE_MARK, Step, steps_of
from sruserve.model.text.patterns import is_known

CHARACTER_MAPS = {
    "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer",
    "Precompiled",
}  # fmt: skip
_RUNS = {" {2,}", " +", r"\s+", r"\s{2,}"}
_ALONE = {"Isolated", "Removed"}
# Characters that form a grapheme with a space after them (Unicode's Prepend), besides those of
# category Cf. A charsmap replaces graphemes.
_PREPENDING = frozenset(
    "\u0d4e\U000111c2\U000111c3\U0001193f\U00011941\U00011a3a\U00011a84\U00011a85\U00011a86"
    "\U00011a87\U00011a88\U00011a89\U00011d46\U00011f02"
)


@dataclass(frozen=True)
class Cuts:
    """How to cut texts for a tokenizer.

    whole_because: why they cannot be cut; None: they can.
    drops_space: the space at the cut is left out.
    openers: characters after it, besides spaces, before which such a text is not cut.
    closers: texts before it after which such a text is not cut.
    """

    normalize: Callable[[str], str] | None = None
    whole_because: str | None = None
    drops_space: bool = False
    openers: frozenset[str] = frozenset()
    closers: tuple[str, ...] = ()

    def allow(self, text: str, at: int) -> bool:
        """Whether a text may be cut before the space at `at`."""
        if self.whole_because is not None or at == 0:
            return False
        before = text[at - 1]
        if before == " " or unicodedata.category(before) == "Cf" or before in _PREPENDING:
            return False
        if self.drops_space and (
            (text[at + 1 : at + 2] or " ") in self.openers or text.endswith(self.closers, 0, at)
        ):
            return False
        if self.normalize is not None:
            # with a character after it, because some normalizers strip the end of a text
            ended = self.normalize(text[max(0, text.rfind(" ", 0, at)) : at] + "x")
            before = ended[-2:-1] if ended.endswith("x") else ""
        return before != "" and not (before.isspace() or before == SPACE_MARK)


class _Uncuttable(Exception):
    """The part of a tokenizer that may change ids beside a cut."""


def cuts_of(tokenizer: Tokenizer, entries: Sequence[str], *, is_slow: bool) -> Cuts:
    """How to cut texts for a tokenizer with these entries.

    is_slow: texts may not be normalized to find a cut.
    """
    normalizer = tokenizer.normalizer
    normalize = None if normalizer is None else normalizer.normalize_str
    try:
        steps = steps_of(normalizer)
        if is_slow:
            raise _Uncuttable("normalizer Replace, with a regular expression,")
        others = [step for step in steps if step.get("prepend") != SPACE_MARK]
        prepends = len(others) < len(steps)
        mark = _mark(others)
        kinds = [
            step["type"] for step in steps if step["type"] not in CHARACTER_MAPS - {"Precompiled"}
        ]
        if prepends and (kinds != ["Prepend", "Replace"] or mark != SPACE_MARK):
            raise _Uncuttable("normalizer Prepend")
        if normalize is not None and not prepends and normalize(" a")[:1] not in list(mark):
            raise _Uncuttable("normalizer")
        _check_splits(tokenizer, steps_of(tokenizer.pre_tokenizer), entries, mark)
        added = tokenizer.get_added_tokens_decoder().values()
        for token in added:
            content = token.content
            if token.normalized and normalize is not None:
                content = normalize(content)
            inside = content.lstrip(" ").replace(SPACE_MARK, " ")
            opens = prepends and (token.normalized or token.content[:1] in (" ", ""))
            # At the beginning of a text, it needs no white space before it.
            opens |= token.single_word and content[:1] in (" ", SPACE_MARK)
            if token.rstrip or opens or any(map(str.isspace, inside)):
                raise _Uncuttable(f"added token {token.content[:40]!r}")
    except _Uncuttable as error:
        return Cuts(whole_because=f"the {error} of its tokenizer.json may change ids beside a cut")
    if not prepends:
        return Cuts(normalize)
    contents = [token.content for token in added]
    openers = frozenset(content[0] for content in contents) | {" ", SPACE_MARK}
    return Cuts(normalize, None, True, openers, tuple(contents))


def _mark(steps: Sequence[Step]) -> str:
    """What normalizers make of a single space; both, if that depends on its neighbours."""
    mark = " "
    for step in steps:
        kind = step["type"]
        if kind == "Replace":
            mark = _replaced(mark, step)
        elif kind not in CHARACTER_MAPS and not (kind == "Strip" and not step["strip_left"]):
            raise _Uncuttable(f"normalizer {kind}")
    return mark


def _replaced(mark: str, step: Step) -> str:
    """The mark after a replacement."""
    content, text = step["content"], step["pattern"].get("String")
    is_space = bool(content) and not content.strip(" " + SPACE_MARK)
    if text is not None:
        if text == " " and content in (" ", SPACE_MARK):
            return content if mark == " " else mark
        if text and not any(c.isspace() or c == SPACE_MARK for c in text):
            return mark
    elif step["pattern"]["Regex"] in _RUNS and is_space:
        single = step["pattern"]["Regex"] in (" +", r"\s+")
        if content.strip(" ") == "" and content:
            return mark
        return (content[0] if single else " " + SPACE_MARK) if mark == " " else mark
    raise _Uncuttable("normalizer Replace")


def _check_splits(
    tokenizer: Tokenizer, steps: Sequence[Step], entries: Sequence[str], mark: str
) -> None:
    """Raise `_Uncuttable` unless all texts are split before a space. mark: what stands for it."""
    # Behind another one, which may have replaced the space, it marks the beginning of each part.
    if any(step["type"] == "Metaspace" and step["prepend_scheme"] == "first" for step in steps[1:]):
        raise _Uncuttable("pre-tokenizer Metaspace (first) after another one")
    for step in steps:
        kind = step["type"]
        if kind == "Metaspace" and step["split"] and step["replacement"] == SPACE_MARK:
            return
        if mark == " " and _splits_at_spaces(step):
            return
        if kind == "Metaspace" and not step["split"] and len(steps) == 1:
            if mark not in (" ", step["replacement"]):
                raise _Uncuttable("pre-tokenizer Metaspace")
            mark = step["replacement"]
        elif not (
            kind == "Digits"
            or (kind == "Punctuation" and step["behavior"] in {*_ALONE, "Contiguous"})
        ):
            raise _Uncuttable(f"pre-tokenizer {kind}")
    _check_entries(tokenizer, entries, mark)


def _splits_at_spaces(step: Step) -> bool:
    """Whether a pre-tokenizer ends a piece before each space that follows another character."""
    match step["type"]:
        case "WhitespaceSplit" | "Whitespace" | "BertPreTokenizer":
            return True
        case "ByteLevel":
            return bool(step["use_regex"])
        case "Split":
            return step["behavior"] in _ALONE and is_known(step["pattern"].get("Regex", ""))
    return False


def _check_entries(tokenizer: Tokenizer, entries: Sequence[str], mark: str) -> None:
    """Raise `_Uncuttable` unless no merge of a text as a whole crosses the beginning of a word."""
    model = tokenizer.model
    kind = type(model).__name__
    if kind != "BPE":
        raise _Uncuttable(f"model {kind} without a pre-tokenizer")
    affixes = model.continuing_subword_prefix or model.end_of_word_suffix
    # A character without an entry would be left out, so that those beside it meet.
    fallback = {f"<0x{byte:02X}>" for byte in range(256)} if model.byte_fallback else ()
    has_all = model.unk_token in entries or (fallback and set(entries).issuperset(fallback))
    if affixes or model.ignore_merges or mark not in entries or not has_all:
        raise _Uncuttable("model BPE without a pre-tokenizer")
    if crossing := next((entry for entry in entries if mark in entry.lstrip(mark)), None):
        raise _Uncuttable(f"entry {crossing[:40]!r}")
