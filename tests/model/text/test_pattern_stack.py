"""A regular expression of a tokenizer.json takes little memory for each character, or is refused.

The library's matcher keeps 32 bytes for each place that it may return to, and has no limit.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from sruserve.model.errors import FolderError
from sruserve.model.text.pattern_reader import cost_of
from sruserve.model.text.pattern_stack import check_patterns
from sruserve.model.text.patterns import _KNOWN, is_quick
from sruserve.model.text.vocabulary_files import tokenizer_codec
from tests.model.text.test_text import SPLIT, replace, with_steps
from tests.model.text.trained_tokenizers import KINDS, trained

CHARACTERS = 20_000
MARKS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
USUAL = {
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{MARKS}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+"
    rf"{LOWER}*{MARKS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+",
    "deepseek": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",  # noqa: RUF001
    "digits by three": r"(?=(\d{3})+(?!\d))",
    "molecules": r"(\[[^\]]+]|Br?|Cl?|N|O|S|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2})",
    "addresses": r"[a-z0-9]+(?:[._-][a-z0-9]+)*@[a-z0-9-]+(?:\.[a-z0-9-]+)+",
    "numbers": r"\d{1,3}(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?",
    "tags": r"""<(?:"[^"]*"|'[^']*'|[^'">])+>""",
    "not before": r"(?:(?!</b>).)*",
    "again": r"(.)\1{2,}",
    "blanks": "(?x) [a-z]+ # letters ( \n | \\d+",
    "posix": "[[:alpha:]]+|[^[:space:]]|[]a]",
}
# Expressions of b, and what else the library understands in them.
MEASURED = [
    "(?:b|c)*", "((b|c)|d)*", "(b|y)+", "(?:(?:b|c){1,3})*", "(?:b{2,30}){3,}", "(?:b|c){1,100000}",
    "(?:(?:b?){4})*", "(?:(?:b|)+)*", "(?>(?>(?>(?:b|))))*", r"(?:\X|)*", "(?:b(?<=b{0,3}))*",
    "(?:(?=b)b)*", "(?:(?!c)b)*", "(?:b??)+", "(?i:(?:b|ss)|)*", "(?:(b|y)|b\\1)*", "(?=.*)b",
    "(?:(?#*)b|c){2,}", "(?x)(?: b | c ) *", "(?:((?:y|[^!])|y)|y)*", "(?i)y|(?:y|b)*",
    "(?<a>b|c)*", "(?:b*+|y)*", "(?:(b)(?:y|b)?)*(?:c|$)",
]  # fmt: skip
MEASURE = """
import os, re, sys
from tokenizers import Regex, normalizers
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
for pattern in sys.argv[2:]:
    if not os.fork():
        delete = normalizers.Replace(Regex(pattern), "")
        delete.normalize_str("")
        open("/proc/self/clear_refs", "w").write("5")
        before = peak()
        delete.normalize_str("b" * int(sys.argv[1]))
        print(peak() - before, flush=True)
        os._exit(0)
    os.wait()
"""


def groups(number: int) -> str:
    return "☃(?:" + "(" * number + "[^!]" + "|y)" * number + ")*"


REFUSED = {
    groups(200): "has more than 64 groups inside each other",
    groups(20): "could keep 41 places for each character of a text; the limit is 8",
    groups(20).replace("(", "(?:").replace("(?:?:", "(?:"): "could keep 21 places",
    "(?x)" + groups(8).replace(")*", ") *"): "could keep 17 places",
    "(?:(?:|x){1000}b)*": "could keep 3,003 places",
    "b(?i)c|" + groups(4): "could keep 10 places",
    "(?:(?=.*)b)*": "looks around without a limit inside a repetition",
    "(?:(?<=b*)b)+": "looks around without a limit inside a repetition",
    "☃(?:|x){100000}": "could keep 300,002 places at one character",
    "(?<a>b\\g<a>?)": r"contains '\\\\g', whose memory has no known bound",
    "(?~ab)": r"contains '\(\?~', whose",
    "(*FAIL)b": r"contains '\(\*F', whose",
    "(b)?(?(1)b|c)": r"contains '\(\?\(', whose",
    r"[\c]](b)": r"contains '\\\\c', whose",
    "b)": r"has a '\)' without a '\('",
    "(b": r"has a '\(' without a '\)'",
    "[b": r"has a '\[' without a '\]'",
}


@pytest.mark.parametrize("name", USUAL)
def test_expressions_of_usual_tokenizers_are_taken(name: str) -> None:
    check_patterns({"normalizer": replace("x", Regex=USUAL[name])})


def test_expressions_that_are_known_cost_little_by_their_parts_too() -> None:
    for pattern in _KNOWN:
        assert cost_of(pattern).each <= 2, pattern


@pytest.mark.parametrize("kind", KINDS)
def test_trained_tokenizers_are_taken(kind: str) -> None:
    check_patterns(json.loads(trained(kind).to_str()))


@pytest.mark.parametrize("pattern", REFUSED, ids=range(len(REFUSED)))
def test_expressions_that_could_take_much_memory_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=f"its regular expression .* {REFUSED[pattern]}"):
        check_patterns({"normalizer": replace("x", Regex=pattern)})


def sequence(name: str, step: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", name: [{"type": "Sequence", name: [step]}]}


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": sequence("normalizers", replace("x", Regex=groups(50)))},
        {"normalizer": [{"Regex": groups(50)}, "x"]},  # the library takes fields in their order
        {"pre_tokenizer": sequence("pretokenizers", SPLIT | {"pattern": {"Regex": groups(50)}})},
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": groups(50)}, "pretokenizers": []}},
        {"decoder": sequence("decoders", replace("x", Regex=groups(50)))},
    ],
    ids=["normalizer", "list", "pre-tokenizer", "hidden", "decoder"],
)
def test_a_tokenizer_with_one_anywhere_is_refused_by_name(part: dict[str, Any]) -> None:
    content = json.dumps(json.loads(with_steps()) | part).encode()
    with pytest.raises(
        FolderError, match=r"^here is not a usable .* expression '☃.*could keep 101"
    ):
        tokenizer_codec(content, "here")


def test_no_text_takes_more_than_was_counted() -> None:
    command = [sys.executable, "-c", MEASURE, str(CHARACTERS), *MEASURED]
    measured = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    assert len(measured) == len(MEASURED)
    shares = []
    for pattern, grown in zip(MEASURED, measured, strict=True):
        cost = cost_of(pattern)
        counted = 32 * ((cost.each + cost.around) * CHARACTERS + cost.fixed)
        shares.append(int(grown) / counted)
        assert int(grown) < counted + 60 * CHARACTERS, pattern  # with the library's own tables
        assert not is_quick(pattern)
    assert max(shares) > 0.5
