"""Read a regular expression in the library's syntax, and count what it may keep of a text.

What has no known bound is refused, such as calls of groups. Whatever is read differently from the
library must cost as much or more.
"""

import re
from dataclasses import replace
from functools import reduce
from math import inf

from sruserve.model.text.pattern_cost import CHARACTER, ESCAPED, FOLDED, Cost

_MAX_DEPTH = 64  # groups around a group

_QUANTIFIER = re.compile(
    r"(?P<short>[*+?])(?P<suffix>[?+]?)|\{(?P<low>\d*)(?P<to>,?)(?P<high>\d*)\}"
)
_COMMENT = re.compile(r"\(\?#(?:[^\\)]|\\.)*\)", re.DOTALL)
_BLANK = re.compile(r"[ \t\n\r\f]|#[^\n]*\n?")  # in a pattern with the option x
_OPTIONS = re.compile(r"\(\?(?P<on>[imxWDSP]*)(?:-(?P<off>[imx]*))?(?P<end>[:)])")
_NAME = re.compile(r"\(\?(?:<\w+>|'\w+')")
_ESCAPE = re.compile(
    r"\\(?:[pPxo]\{[^{}]*\}|x[0-9A-Fa-f]{0,2}|u[0-9A-Fa-f]{4}|[1-9]\d*|k<\w+>|k'\w+'|.)", re.DOTALL
)
_EMPTY = frozenset("bBAzZGKyY123456789k`'<>")  # escapes that need no character
_KNOWN = _EMPTY | frozenset("dDsSwWhHnrtfvae0xoupPRXNO")
_BACKREFERENCE = re.compile(r"\\[1-9k]")
_AROUND = {"(?=": 2, "(?!": 2, "(?<=": 5, "(?<!": 5}  # and the entries that each takes itself


class _Reader:
    """Reads from left to right, and knows where it is."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._depth = pattern, 0, 0
        self._refers = _BACKREFERENCE.search(pattern) is not None

    def whole(self) -> Cost:
        cost = self._alternatives(frozenset())
        if self._at < len(self._pattern):
            raise ValueError("has a ')' without a '('")
        return cost

    def _alternatives(self, options: frozenset[str]) -> Cost:
        """Read up to the end of a group."""
        branches = [Cost()]
        while True:
            self._skip(options)
            here = self._pattern[self._at : self._at + 1]
            if here in ("", ")"):
                break
            if here == "|":
                self._at += 1
                branches.append(Cost())
            else:
                branches[-1] = branches[-1].then(self._repeated(self._part(options), options))
        return reduce(Cost.or_else, branches).and_keeps(len(branches) > 1)

    def _repeated(self, cost: Cost, options: frozenset[str]) -> Cost:
        """Read the quantifiers of a part."""
        while True:
            self._skip(options)
            found = _QUANTIFIER.match(self._pattern, self._at)
            if found is None or not (found["short"] or found["low"] or found["high"]):
                return cost
            if not found["short"] and not found["low"] and not found["to"]:
                return cost
            self._at = found.end()
            if found["short"] == "?":
                cost = replace(cost.and_keeps(1), may_be_empty=True)
            elif found["short"]:
                cost = cost.repeated(int(found["short"] == "+"), inf, is_interval=False)
            else:
                low = int(found["low"] or 0)
                high = int(found["high"]) if found["high"] else inf if found["to"] else low
                low, high = int(min(low, high)), max(low, high, 1)
                cost = cost.repeated(low, high, is_interval=True)
            cost = cost.and_keeps(bool(found["suffix"]))

    def _part(self, options: frozenset[str]) -> Cost:
        """Read a character, a class, an anchor or a group."""
        here = self._pattern[self._at]
        if here == "(":
            return self._group(options)
        if here == "[":
            self._class()
        elif here == "\\":
            return self._escape(options)
        else:
            self._at += 1
            if here in "^$":
                return Cost()
        return FOLDED if "i" in options else CHARACTER

    def _escape(self, options: frozenset[str]) -> Cost:
        found = _ESCAPE.match(self._pattern, self._at)
        letter = self._pattern[self._at + 1 : self._at + 2]
        if found is None or (letter.isalnum() and letter.isascii() and letter not in _KNOWN):
            raise _unbounded(f"\\{letter}")
        if found[0] == "\\k":
            raise _unbounded(found[0])
        self._at = found.end()
        if letter in ESCAPED:
            return ESCAPED[letter]
        cost = FOLDED if "i" in options else CHARACTER
        if letter in "123456789k":
            return replace(cost, longest=inf, may_be_empty=True)
        return replace(cost, may_be_empty=letter in _EMPTY)

    def _group(self, options: frozenset[str]) -> Cost:
        for opening, own in _AROUND.items():
            if self._pattern.startswith(opening, self._at):
                return self._looked_around(self._inside(len(opening), options), own)
        if self._pattern.startswith("(?>", self._at):
            return self._inside(len("(?>"), options).and_keeps(1)
        if found := _NAME.match(self._pattern, self._at):
            return self._captured(len(found[0]), options)
        if found := _OPTIONS.match(self._pattern, self._at):
            changed = options.union(found["on"]).difference(found["off"] or "")
            if found["end"] == ":":
                return self._inside(len(found[0]), changed)
            return self._inside(len(found[0]), changed, closes=False)
        if self._pattern.startswith(("(?", "(*"), self._at):
            raise _unbounded(self._pattern[self._at : self._at + 3])
        return self._captured(1, options)

    def _captured(self, opening: int, options: frozenset[str]) -> Cost:
        inside = self._inside(opening, options).and_keeps(1 + self._refers)
        return replace(inside, groups=inside.groups + self._refers)

    def _inside(self, opening: int, options: frozenset[str], closes: bool = True) -> Cost:
        """Read what a group holds. closes: it has a bracket of its own, which is read, too."""
        self._at += opening
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"has more than {_MAX_DEPTH} groups inside each other")
        cost = self._alternatives(options)
        self._depth -= 1
        if closes:
            if self._at == len(self._pattern):
                raise ValueError("has a '(' without a ')'")
            self._at += 1
        return cost

    def _looked_around(self, inside: Cost, own: int) -> Cost:
        if inside.longest == inf and inside.each:
            around, seen = inside.around + inside.each, 0.0
        else:
            around, seen = inside.around, inside.each and inside.each * inside.longest
        return Cost(inside.fixed + own + seen, around=around, groups=inside.groups)

    def _class(self) -> None:
        depth = 0
        while self._at < len(self._pattern):
            here = self._pattern[self._at]
            self._at += 1
            if here == "\\":
                if self._pattern[self._at : self._at + 1] in ("c", "C", "M"):
                    raise _unbounded(f"\\{self._pattern[self._at]}")
                self._at += 1
            elif here == "[":
                depth += 1
                self._at += self._pattern.startswith("^", self._at)
                self._at += self._pattern.startswith("]", self._at)  # a plain character there
            elif here == "]":
                depth -= 1
                if not depth:
                    return
        raise ValueError("has a '[' without a ']'")

    def _skip(self, options: frozenset[str]) -> None:
        while found := _COMMENT.match(self._pattern, self._at) or (
            _BLANK.match(self._pattern, self._at) if "x" in options else None
        ):
            self._at = found.end()


def _unbounded(what: str) -> ValueError:
    return ValueError(f"contains {what!r}, whose memory has no known bound; write it without")


def cost_of(pattern: str) -> Cost:
    """Return what a whole pattern may keep; raises `ValueError` that says what has no bound."""
    return _Reader(pattern).whole()
