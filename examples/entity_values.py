"""Draw what the tagger marks, in the spellings that people use, and names and numbers it must not.

Of most lists of words, one in eight is left for the test.
"""

from random import Random

from examples.entity_words import read_words


class Values:
    """Draws dates, times, amounts of money, e-mail addresses, phone numbers and places.

    held_out: use the names, places and domains that training never sees, and no others.
    """

    def __init__(self, random: Random, *, held_out: bool = False) -> None:
        def share(name: str) -> list[str]:
            words = enumerate(self._words[name])
            return [word for number, word in words if (number % 8 == 5) == held_out]

        self._words = read_words()
        self._pick, self._number = random.choice, random.randint
        self._places, self._domains = share("places"), share("domains")
        self._given, self._family = share("given names"), share("family names")

    def place(self) -> str:
        """A town, a country or a region; one in eight is made up."""
        if self._number(1, 8) > 1:
            return self._pick(self._places)
        return self._made_up() + self._from("place endings")

    def person(self) -> str:
        """A name, which is not marked."""
        given, family, made_up = self._pick(self._given), self._pick(self._family), self._made_up()
        both = f"{given} {family}"
        titled = f"{self._from('titles')} {family}"
        return self._pick([given, given, both, both, titled, f"{given} {made_up}", made_up])

    def date(self) -> str:
        """A date, a month, a year or a day of the week."""
        pick, number, words = self._pick, self._number, self._words
        day, month_number = number(1, 31), number(1, 12)
        year = number(1700, 2050) if number(0, 1) else number(1990, 2030)
        month = self._from("months" if number(0, 3) else "short months")
        weekday = self._from("weekdays" if number(0, 3) else "short weekdays")
        nth, full_weekday = ordinal(day), self._from("weekdays")
        in_words = [
            f"{day} {month}", f"{day} {month} {year}", f"{month} {day}", f"{month} {day}, {year}",
            f"{month} {nth}", f"{nth} of {month}", f"{nth} of {month} {year}", f"{day}. {month}",
            f"{month} {nth}, {year}", f"{weekday}, {month} {day}", f"{weekday} {day} {month}",
            f"{weekday}, {day} {month} {year}", f"{weekday}, {day} {month}", f"{month} {year}",
            f"{weekday} the {nth}", self._from("months"), weekday, full_weekday,
            f"{pick(['next', 'last', 'this'])} {full_weekday}",
            f"{pick(['early', 'late', 'mid'])} {self._from('months')}",
            pick(words["other dates"]), pick(words["other dates"]),
        ]  # fmt: skip
        in_digits = [
            f"{year}-{month_number:02}-{day:02}", f"{day:02}.{month_number:02}.{year}",
            f"{day}/{month_number}/{year}", f"{month_number:02}/{day:02}/{year % 100:02}",
            f"{day}.{month_number}.", str(year), str(year),
        ]  # fmt: skip
        return pick([*in_words, *in_digits])

    def time(self) -> str:
        """A time of the day."""
        pick, number = self._pick, self._number
        hour, minute, small = number(0, 23), number(0, 59), number(1, 12)
        half = pick(["am", "pm", " am", " pm", " a.m.", " p.m.", " AM", " PM"])
        spoken, quarter = pick(self._words["numbers"][:12]), pick(["00", "15", "30", "45"])
        return pick([
            f"{hour}:{minute:02}", f"{hour:02}:{minute:02}", f"{hour:02}:{quarter}",
            f"{small}{half}", f"{small}{half}", f"{small}:{quarter}{half}", f"{small} o'clock",
            f"{spoken} o'clock", f"half past {spoken}", f"{self._from('numbers')} past {spoken}",
            f"quarter {pick(['to', 'past'])} {spoken}", pick(["noon", "midnight"]),
            f"{hour:02}h{minute:02}", f"{hour:02}:{minute:02}:{number(0, 59):02}",
        ])  # fmt: skip

    def money(self) -> str:
        """An amount of money."""
        pick, number = self._pick, self._number
        whole = number(1, 99) if number(0, 1) else number(1, 10 ** number(3, 6))
        cents = f"{number(0, 99):02}"
        digits = pick([str(whole), f"{whole:,}", f"{whole:,}.{cents}", f"{whole}.{cents}"])
        size = pick(["million", "billion", "thousand"])
        large = f"{number(1, 900)}{pick(['', f'.{number(1, 9)}'])} {size}"
        spoken, sign = self._spoken(), pick("$$$€€££¥")
        in_words = pick([
            spoken, f"{spoken} hundred", f"{spoken} thousand", "a hundred", f"a {size}",
        ])  # fmt: skip
        currency, code = self._from("currencies"), self._from("currency codes")
        return pick([
            f"{sign}{digits}", f"{sign}{digits}", f"{sign}{whole}", f"{digits} €", f"{whole}€",
            f"{digits} {currency}", f"{whole} {currency}", f"{sign}{large}", f"{large} {currency}",
            f"{code} {digits}", f"{digits} {code}", f"{in_words} {currency}",
            f"{sign}{number(1, 900)}{pick('kKmM')}",
        ])  # fmt: skip

    def email(self) -> str:
        """An e-mail address."""
        pick, made_up = self._pick, self._made_up()
        given, family, domain = map(pick, (self._given, self._family, self._domains))
        local = pick([
            f"{given}.{family}", given, f"{given[0]}{family}", f"{given}_{family}", family,
            f"{given}{self._number(1, 99)}", f"{given}-{family}",
            f"{given}+{pick(self._domains)}",
            f"{given[0]}.{family}{self._number(1, 99)}", self._from("mailboxes"), made_up,
            f"{made_up}.{family}",
        ])  # fmt: skip
        host = pick([domain, self._made_up(), f"mail.{domain}"])
        address = f"{local}@{host}.{self._from('top-level domains')}"
        return address if self._number(0, 5) == 0 else address.lower()

    def phone(self) -> str:
        """A phone number."""
        between, number, code = self._pick("- .-"), self._number, self._from("country codes")
        area = str(number(2, 9)) + self._digits(2)
        shapes = [
            f"{area}{between}###{between}####", f"({area}) ###-####", f"+{code} ## #### ####",
            f"+{code}" + "#" * number(8, 10), f"+{code} ### ### ####", f"+{code} ## ## ## ##",
            f"0{'#' * number(2, 4)} {'#' * number(5, 8)}", "0## #### ####",
            "###-####", "0#########", f"+{code}-{area}-###-####",
            f"0###/{'#' * number(5, 8)}", "0### ### ###",
            f"+{code} {'#' * number(2, 3)} {'#' * number(6, 8)}",
        ]  # fmt: skip
        shape = self._pick(shapes)
        return "".join(self._digits(1) if each == "#" else each for each in shape)

    def number(self) -> str:
        """A number that is not marked."""
        number = self._number
        numbers = [number(2, 12), number(2, 999), number(1000, 99999), number(0, 999) / 10]
        return str(self._pick(numbers))

    def _from(self, name: str) -> str:
        return self._pick(self._words[name])

    def _digits(self, count: int) -> str:
        return "".join(str(self._number(0, 9)) for _ in range(count))

    def _spoken(self) -> str:
        numbers, tens = self._words["numbers"], self._from("tens")
        return self._pick([self._pick(numbers[1:]), tens, f"{tens}-{self._pick(numbers[:9])}"])

    def _made_up(self) -> str:
        return "".join(self._from("syllables") for _ in range(self._number(1, 3))).capitalize()


def ordinal(day: int) -> str:
    """A day of the month as `1st`, `2nd`, `3rd`, `4th` and so on."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day // 10 != 1 else 0, "th")
    return f"{day}{ending}"
