"""Make English sentences in which dates, times, money, addresses, numbers and places are marked.

    for text, spans in Sentences(Random(1)):
        ...

A span is (begin, end, label) in characters. Half of the sentences are templates whose slots are
filled, the others are composed: somebody does something, with phrases in any order after it. One
template in eight, and one word in eight of most lists, is left for the test (`held_out`).
"""

import re
from collections.abc import Iterator
from random import Random

from examples.entity_values import Values
from examples.entity_words import read_templates, read_words

Span = tuple[int, int, str]
Marked = tuple[str, list[Span]]

LABELS = ("date", "time", "money", "email", "phone", "place")
PHRASES = {
    "place": ("in", "in", "in", "near", "from", "to", "outside", "via", "at the station of", "to"),
    "date": ("on", "on", "since", "until", "before", "by", "after", "", "in", "around"),
    "time": ("at", "at", "around", "by", "before", "after", "until", "at about"),
    "money": ("for", "for", "for about", "with", "worth", "for less than", "and paid", "at"),
    "email": ("at", "via", "through", "under", "of", "and wrote to", "with"),
    "phone": ("on", "at", "under", "and called", "via", "or call", "tel."),
    "adverb": ("", "", "", ",", "and"),
    "person": ("with", "for", "and", "like", "without"),
    "number": ("for", "with", "number", "as no.", "with about"),
}
_WEIGHTS = (5, 5, 4, 4, 2, 2, 4, 3, 2)  # how often each of the phrases is drawn
_ORDINAL = re.compile(r"\d+(st|nd|rd|th) of ")
_SLOT = re.compile(r"\{(\w+)\}")


class Sentences:
    """An endless supply of one to three sentences at a time, with their spans."""

    def __init__(self, random: Random, *, held_out: bool = False) -> None:
        self.random, self.values = random, Values(random, held_out=held_out)
        self._templates = [
            template
            for number, template in enumerate(read_templates())
            if (number % 8 == 3) == held_out
        ]
        self._words = read_words()
        self._composes = not held_out

    def __iter__(self) -> Iterator[Marked]:
        while True:
            yield self._cased(
                self._joined([self._one() for _ in range(self.random.choice((1, 1, 1, 2, 3)))])
            )

    def _one(self) -> Marked:
        kind = self.random.random()
        if not self._composes or kind < 0.5:
            return self._fill(self.random.choice(self._templates))
        return self._fill(self._composed() if kind < 0.85 else self._salad())

    def _composed(self) -> str:
        """Somebody does something, and when, where and for how much."""
        pick, verbs = self.random.choice, self._words["verbs"]
        subject = pick(("{person}", pick(self._words["subjects"])))
        thing = pick(("", "{thing} "))
        kinds = self.random.choices(tuple(PHRASES), _WEIGHTS, k=self.random.randint(1, 4))
        phrases = [f"{pick(PHRASES[kind])} {{{kind}}}".strip() for kind in kinds]
        if self.random.random() < 0.15:
            first = phrases.pop()
            sentence = f"{first}, {subject} {pick(verbs)} {thing}{' '.join(phrases)}"
        else:
            sentence = f"{subject} {pick(verbs)} {thing}{pick((' ', ' ', ', ')).join(phrases)}"
        return sentence.strip() + pick((".", ".", ".", "", "!", "?", " -", ";"))

    def _salad(self) -> str:
        """Common words in any order, so that no word is marked for its company alone."""
        words = self.random.choices(self._words["fillers"], k=self.random.randint(2, 9))
        slots = self.random.choices(tuple(PHRASES), _WEIGHTS, k=self.random.randint(0, 2))
        for kind in slots:
            phrase = f"{self.random.choice(PHRASES[kind])} {{{kind}}}".strip()
            words.insert(self.random.randint(0, len(words)), phrase)
        return " ".join(words) + self.random.choice((".", "", "?"))

    def _fill(self, template: str) -> Marked:
        """Fill the slots of a template, and begin with a capital letter."""
        text, spans, end = "", list[Span](), 0
        for slot in _SLOT.finditer(template):
            text += template[end : slot.start()]
            value = self._draw(slot[1])
            if _ORDINAL.match(value) and self.random.random() < 0.7:
                text += "the "
            if slot[1] in LABELS:
                spans.append((len(text), len(text) + len(value), slot[1]))
            text, end = text + value, slot.end()
        text += template[end:]
        first_is_marked = any(begin == 0 for begin, _, _ in spans)
        return text if first_is_marked else text[:1].upper() + text[1:], spans

    def _draw(self, slot: str) -> str:
        if slot in ("thing", "adverb"):
            return self.random.choice(self._words[f"{slot}s"])
        value: str = getattr(self.values, slot)()
        return value

    def _joined(self, parts: list[Marked]) -> Marked:
        text, spans = "", list[Span]()
        for part, marked in parts:
            text += " " if text else ""
            spans += [(begin + len(text), end + len(text), label) for begin, end, label in marked]
            text += part
        return text, spans

    def _cased(self, marked: Marked) -> Marked:
        """Now and then all in lower or upper case, or cut off between words."""
        text, spans = marked
        chance = self.random.random()
        if chance < 0.14:
            return text.lower(), spans
        if chance < 0.17:
            return text.upper(), spans
        if chance < 0.3:
            cuts = [
                place.start()
                for place in re.finditer(" ", text)
                if not any(begin <= place.start() < end for begin, end, _ in spans)
            ]
            cut = self.random.choice(cuts) if cuts else len(text)
            return text[:cut], [span for span in spans if span[1] <= cut]
        return text, spans
