"""The stored facts of every form under every Triton, and a question to the compilers themselves.

`python -m tests.kernels.aot_table` compiles each form whose key in the table is not the present
one, a few others, and stores the facts: `make compiled`. The kernels rarely change, and to compile
all of them takes minutes.

`python -m tests.kernels.aot_table 0 3` is the first of three Tritons: it prints an `Answer`.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import triton

from tests.kernels import aot
from tests.kernels.aot_compile import Facts, compile_ahead, key
from tests.kernels.occupancy import blocks

MODULE = "tests.kernels.aot_table"
TABLE = Path(__file__).with_name("compiled.csv")
# The folders of other Tritons than the installed one, if there are any.
FOLDERS = [os.environ[name] for name in ("OLDEST_TRITON", "NEWEST_TRITON") if name in os.environ]
COLUMNS = ("form", "triton", *(each.name for each in fields(Facts)), "blocks", "key")


class Row(NamedTuple):
    """What one Triton says of one form, and the digest of all that this depends on.

    blocks: of the form on a multiprocessor at a time, which follows from the facts.
    """

    form: str
    triton: str
    facts: Facts
    blocks: int
    key: str


@dataclass(frozen=True)
class Answer:
    """What one Triton says today: the key of every form, and the facts that it compiled anew."""

    triton: str
    keys: dict[str, str]
    compiled: dict[str, Facts]


def stored() -> list[Row]:
    with TABLE.open(newline="") as file:
        return [
            Row(row["form"], row["triton"], _facts(row), int(row["blocks"]), row["key"])
            for row in csv.DictReader(file)
        ]


def store(rows: Iterable[Row]) -> None:
    with TABLE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for row in rows:
            table.writerow((row.form, row.triton, *astuple(row.facts), row.blocks, row.key))


def ask() -> list[Answer]:
    """Every Triton at once, in a process each, and nothing that one has compiled before."""
    folders = ["", *FOLDERS]
    with TemporaryDirectory() as cache, ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(lambda turn: _ask(folders, turn, cache), range(len(folders))))


def _ask(folders: list[str], turn: int, cache: str) -> Answer:
    path = str(Path(folders[turn]).absolute()) if folders[turn] else ""
    done = subprocess.run(
        [sys.executable, "-m", MODULE, str(turn), str(len(folders))],
        env={**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": cache},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert folders[turn].endswith(printed["triton"]) or not path, "another Triton was asked for"
    compiled = {form: _facts(facts) for form, facts in printed["compiled"].items()}
    return Answer(printed["triton"], printed["keys"], compiled)


def answer(turn: int, turns: int) -> Answer:
    """Compile what the table does not know, and this Triton's share of the sample."""
    forms, version = aot.forms(), triton.__version__
    keys = {form: key(*target) for form, target in forms.items()}
    known = {row.form: row.key for row in stored() if row.triton == version}
    anew = sample()[turn::turns] + [form for form in forms if known.get(form) != keys[form]]
    return Answer(version, keys, {form: compile_ahead(*forms[form]) for form in anew})


def sample() -> list[str]:
    """One form of every kernel: each run sees that the compilers still say what is stored."""
    first: dict[str, str] = {}
    for form, (configuration, _) in aot.forms().items():
        first.setdefault(configuration.kernel.__name__, form)
    return list(first.values())


def facts_now(answer: Answer) -> dict[str, Facts]:
    """What is stored where it is up to date, and what was compiled."""
    present = {
        row.form: row.facts
        for row in stored()
        if row.triton == answer.triton and answer.keys.get(row.form) == row.key
    }
    return present | answer.compiled


def blocks_of(form: str, facts: Facts) -> int:
    """How many blocks of a form fit on a multiprocessor of its capability."""
    wanted, capability = aot.forms()[form]
    return blocks(facts.registers, facts.shared_bytes, wanted.options["num_warps"], capability)


def _facts(numbers: Mapping[str, str | int]) -> Facts:
    return Facts(**{each.name: int(numbers[each.name]) for each in fields(Facts)})


def main() -> None:
    if turn := list(map(int, sys.argv[1:])):
        print(json.dumps(asdict(answer(*turn))))
        return
    answers = sorted(ask(), key=lambda answer: answer.triton)
    every = [(answer, facts_now(answer)) for answer in answers]
    store(
        Row(form, answer.triton, facts[form], blocks_of(form, facts[form]), answer.keys[form])
        for form in aot.forms()
        for answer, facts in every
    )


if __name__ == "__main__":
    main()
