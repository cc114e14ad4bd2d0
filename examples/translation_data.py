"""Sentences to translate, made by rules: numbers into English and German words, dates into ISO.

A source begins with the language of its target: `en: 421`, `de: 421`, `iso: 5. März 2021`.
"""

import random
from collections.abc import Iterator
from datetime import date, timedelta

Pair = tuple[str, str]

FIRST_DAY, DAYS = date(1900, 1, 1), 365 * 200
HELD_OUT = 17  # one in so many numbers and days is for evaluation alone


def _words(words: str) -> list[str]:
    return words.split()


_EN_SMALL = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_EN_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
_DE_SMALL = _words(
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn"
)
_DE_TENS = _words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_EN_MONTHS = _words(
    "January February March April May June July August September October November December"
)
_DE_MONTHS = _words(
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
)


def english(number: int) -> str:
    """A number below 10,000 in English words, as in `four hundred twenty-one`."""
    if number < 20:
        return _EN_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _EN_TENS[tens - 2] + (f"-{_EN_SMALL[ones]}" if ones else "")
    size, word = (100, "hundred") if number < 1000 else (1000, "thousand")
    many, rest = divmod(number, size)
    return f"{english(many)} {word}" + (f" {english(rest)}" if rest else "")


def german(number: int) -> str:
    """A number below 10,000 in German words, as in `vierhunderteinundzwanzig`."""
    words = _german_stem(number)
    return f"{words}s" if words.endswith("ein") else words


def _german_stem(number: int) -> str:
    """The word as it stands before others: `ein`, not `eins`."""
    if number < 20:
        return _DE_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (f"{_DE_SMALL[ones]}und" if ones else "") + _DE_TENS[tens - 2]
    size, word = (100, "hundert") if number < 1000 else (1000, "tausend")
    many, rest = divmod(number, size)
    return f"{_german_stem(many)}{word}" + (_german_stem(rest) if rest else "")


def number_pair(number: int, language: str) -> Pair:
    """A number and its words."""
    return f"{language}: {number}", (english if language == "en" else german)(number)


def day_pair(day: date, spelling: int) -> Pair:
    """A date in one of four spellings, and in ISO 8601."""
    en, de = _EN_MONTHS[day.month - 1], _DE_MONTHS[day.month - 1]
    source = (
        f"{en} {day.day}, {day.year}",
        f"{day.day} {en} {day.year}",
        f"{day.day}. {de} {day.year}",
        f"{day.day}.{day.month}.{day.year}",
    )[spelling]
    return f"iso: {source}", day.isoformat()


def pairs(generator: random.Random) -> Iterator[Pair]:
    """Yield random pairs to train with, for ever."""
    while True:
        if generator.random() < 0.7:
            number = generator.randrange(10 ** generator.randint(1, 4))
            if not _holds_out_number(number):
                yield number_pair(number, generator.choice(("en", "de")))
        else:
            day = generator.randrange(DAYS)
            if not _holds_out_day(day):
                yield day_pair(FIRST_DAY + timedelta(day), generator.randrange(4))


def held_out() -> dict[str, list[Pair]]:
    """All pairs that no training sees, in any language or spelling, by the kind of the target."""
    numbers = [number for number in range(10_000) if _holds_out_number(number)]
    days = [FIRST_DAY + timedelta(day) for day in range(DAYS) if _holds_out_day(day)]
    return {
        "en": [number_pair(number, "en") for number in numbers],
        "de": [number_pair(number, "de") for number in numbers],
        "iso": [day_pair(day, spelling) for day in days for spelling in range(4)],
    }


def _holds_out_number(number: int) -> bool:
    # Small numbers are parts of all others, so none of them is held out.
    return number >= 1000 and number % HELD_OUT == 3


def _holds_out_day(day: int) -> bool:
    return day % HELD_OUT == 3
