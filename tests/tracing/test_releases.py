"""Networks with each release of `sru`, live: their folders give the releases' own answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.releases import folder_of, needs
from tests.tracing import release_worker

RELEASES = [
    *("2.0.0", "2.1.4", "2.1.7", "2.1.9", "2.3.5", "2.6.0"),
    *(f"3.0.0.dev{i}" for i in (2, 3, 5, 6)),
]
SRU: list[tuple[str, dict[str, Any]]] = [
    ("SRU", {}),
    ("SRU", {"bidirectional": True, "num_layers": 3}),
    ("SRU", {"layer_norm": True, "rescale": True, "highway_bias": -2}),
    ("SRU", {"use_tanh": 1}),
]
SRUPP: list[tuple[str, dict[str, Any]]] = [
    ("SRUpp", {"proj_size": 4}),
    ("SRUpp", {"proj_size": 4, "num_heads": 2, "bidirectional": True, "layer_norm": True}),
    ("SRUpp", {"proj_size": 4, "attention_every_n_layers": 2, "num_layers": 4}),
]


NEEDED = {release: needs(release) for release in RELEASES}


def requests(release: str) -> list[tuple[str, dict[str, Any]]]:
    return SRU + (SRUPP if release >= "3" else [])


@pytest.fixture(scope="module")
def families() -> dict[str, list[str]]:
    """Of each release that is installed, what came of its networks."""
    installed = [release for release, mark in NEEDED.items() if not mark.args[0]]
    result = subprocess.run(
        [sys.executable, release_worker.__file__],
        input=json.dumps({each: (folder_of(each), requests(each)) for each in installed}),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    reply: dict[str, list[str]] = json.loads(result.stdout)
    return reply


@pytest.mark.parametrize("release", [pytest.param(r, marks=mark) for r, mark in NEEDED.items()])
def test_a_network_with_a_release_of_sru_is_saved_live(
    release: str, families: dict[str, list[str]]
) -> None:
    expected = ["sru"] * len(SRU) + ["srupp"] * (len(requests(release)) - len(SRU))
    assert families[release] == expected
