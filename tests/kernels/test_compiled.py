"""The compiled Triton kernels, without a GPU: pipelined, without spills, within a chip's limits.

What the compilers say of each form is stored; what has changed since, and a sample, they compile.
"""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.kernels import aot, aot_table
from tests.kernels.aot_compile import Facts
from tests.kernels.aot_table import Answer
from tests.kernels.occupancy import blocks

ROOT = Path(__file__).parents[2]
FORMS = aot.forms()


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return aot_table.ask()


@pytest.fixture(scope="module")
def facts(answers: list[Answer]) -> dict[str, dict[str, Facts]]:
    """Triton -> form -> what this Triton makes of it."""
    return {answer.triton: aot_table.facts_now(answer) for answer in answers}


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_compiles_to_what_its_tile_promises(
    form: str, facts: dict[str, dict[str, Facts]]
) -> None:
    configuration, _ = FORMS[form]
    for version, each in facts.items():
        made = each[form]
        assert made.async_copies >= configuration.async_copies, version
        assert made.spill_bytes == 0, version
        assert made.registers <= configuration.registers, version
        assert made.barriers <= configuration.barriers, version
        assert aot_table.blocks_of(form, made) >= configuration.blocks, version
        assert made.lacks == 0, version
        assert not configuration.sums_from_zero or made.sums_from_others == 0, version


def test_what_is_stored_is_what_the_compilers_say_today(answers: list[Answer]) -> None:
    rows = {(row.form, row.triton): row for row in aot_table.stored()}
    sampled = 0
    for answer in answers:
        mine = {form: rows.get((form, answer.triton)) for form in FORMS}
        stale = [form for form, row in mine.items() if not row or row.key != answer.keys[form]]
        assert not stale, f"`make compiled` stores what Triton {answer.triton} now makes of these"
        for form, made in answer.compiled.items():
            row = mine[form]
            assert row is not None
            assert row.facts == made, f"{form} under Triton {answer.triton}"
            assert row.blocks == aot_table.blocks_of(form, made), form
            sampled += 1
    assert sampled == len({configuration.kernel for configuration, _ in FORMS.values()})


def test_the_table_holds_each_form_once_for_each_triton_and_nothing_else() -> None:
    """The two Tritons of the Makefile, and the one that torch requires."""
    versions = re.findall(r"triton-(\d[\d.]+\d)", (ROOT / "Makefile").read_text())
    versions += re.findall(r"(?m)^triton==(\S+)", (ROOT / "constraints.txt").read_text())
    assert len(versions) == 3
    held = Counter((row.form, row.triton) for row in aot_table.stored())
    assert held == Counter(product(FORMS, versions)), "`make compiled` stores what is missing"


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "capability", "fit"),
    [
        pytest.param(32, 0, 4, 90, 16, id="warps"),
        pytest.param(32, 0, 1, 90, 32, id="blocks"),
        pytest.param(129, 0, 4, 90, 3, id="registers-in-units-of-8"),
        pytest.param(255, 0, 16, 90, 0, id="too-many-registers"),
        pytest.param(32, 232_448, 4, 90, 1, id="the-most-shared-memory-of-a-block"),
        pytest.param(32, 232_449, 4, 90, 0, id="too-much-shared-memory"),
        pytest.param(32, 166_912, 4, 80, 1, id="the-most-of-a-block-on-Ampere"),
    ],
)
def test_blocks_fit_by_registers_warps_and_shared_memory(
    registers: int, shared_bytes: int, warps: int, capability: int, fit: int
) -> None:
    assert blocks(registers, shared_bytes, warps, capability) == fit


def test_every_kernel_is_compiled_for_every_capability_that_can_run_it() -> None:
    places: dict[str, set[int]] = {}
    for wanted, capability in FORMS.values():
        places.setdefault(wanted.kernel.__name__, set()).add(capability)
    assert places.pop("descriptor_kernel") == {90}
    assert set(map(frozenset, places.values())) == {frozenset(aot.EVERY_CAPABILITY)}


def test_every_candidate_is_compiled_for_every_capability_that_has_its_instructions() -> None:
    names = [name for name in FORMS if name.startswith("candidate-")]
    for part in ("product", "step", "merged"):
        places = {name.rpartition("-")[2] for name in names if f"-{part}-" in name}
        assert places == {"sm80", "sm90", "sm100"}, part


@pytest.mark.parametrize("configuration", list(aot.configurations()), ids=lambda each: each.name)
def test_no_run_time_number_makes_a_kernel_compile_again(configuration: aot.Configuration) -> None:
    fixed = {each.name for each in configuration.kernel.params if each.do_not_specialize}
    numbers = {name for name, kind in configuration.signature.items() if kind.startswith("i")}
    assert numbers - configuration.constants.keys() <= fixed
