"""Give the speakers of a play new names, so that a model learns to remember names, not these ones.

Every speech of the text begins with its speaker's name on a line of its own. A model that is
trained long on a few plays knows their casts by heart, and is sure that nobody else will speak: in
other plays such lines cost it five bits a character. `rename` puts new names, consistently within
a part of the text, in the place of most of them.
"""

import random
import re
from collections import Counter

SPEAKER = re.compile(r"(?<=\n\n)[A-Z][A-Za-z' ]*(?=:\n)")
ORDINALS = {"First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "All", "Both"}
END = "\n"


class Names:
    """Makes names: those of the text, and new ones whose letters follow each other as in those."""

    def __init__(self, text: str) -> None:
        words = sorted({word for name in SPEAKER.findall(text) for word in name.split()})
        self._upper: list[str] = [word for word in words if word.isupper() and len(word) > 2]
        self._title: list[str] = sorted(set(re.findall(r"(?<= )[A-Z][a-z]{3,9}(?=[ ,.])", text)))
        self._next: dict[str, Counter[str]] = {}
        for word in self._upper:
            for before, letter in zip(f"{END}{word}", f"{word}{END}", strict=True):
                self._next.setdefault(before, Counter())[letter] += 1

    def like(self, name: str, pick: random.Random) -> str:
        """A name of the same kind as `name`."""
        return " ".join(self._word(word, pick) for word in name.split())

    def _word(self, word: str, pick: random.Random) -> str:
        if word in ORDINALS or len(word) < 3:
            return word
        if not word.isupper():
            return pick.choice(self._title)
        return pick.choice(self._upper) if pick.random() < 0.3 else self._invented(pick)

    def _invented(self, pick: random.Random) -> str:
        while True:
            name = ""
            while len(name) < 12:
                letters = self._next[name[-1] if name else END]
                letter = pick.choices(list(letters), list(letters.values()))[0]
                if letter == END:
                    break
                name += letter
            if len(name) > 3:
                return name


def rename(text: str, names: Names, pick: random.Random, share: float = 0.8) -> str:
    """`text` with about `share` of the speakers of every part renamed, also in others' words."""
    parts = []
    start = 0
    while start < len(text):
        end = text.find("\n\n", start + pick.randint(2_000, 12_000))
        end = len(text) if end < 0 else end
        parts.append(_renamed(text[start:end], names, pick, share))
        start = end
    return "".join(parts)


def _renamed(part: str, names: Names, pick: random.Random, share: float) -> str:
    """One part, in which a new name stands for an old one everywhere."""
    new = {
        name: names.like(name, pick)
        for name in sorted(set(SPEAKER.findall(part)))
        if pick.random() < share
    }
    part = SPEAKER.sub(lambda match: new.get(match[0], match[0]), part)
    called = {
        name.title(): other.title()
        for name, other in new.items()
        if " " not in name and len(name) > 3
    }
    if not called:
        return part
    word = re.compile(r"\b(" + "|".join(map(re.escape, called)) + r")\b")
    return word.sub(lambda match: called[match[0]], part)
