"""Every golden case of a translation system, made by the released code, through the import."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sruserve.model.importers.translation.build import import_translation
from sruserve.model.translation.folder import TranslationModel, load_translation
from tests.model.translation.systems import forced

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "translation"
CASES = sorted(case.parent for case in GOLDEN.glob("*/case.json"))


def imported(case: Path, folder: Path) -> TranslationModel:
    """The case's checkpoint as a model folder, read back from it."""
    options = folder / "options.json"
    options.write_text(json.dumps(json.loads((case / "case.json").read_text())["options"]))
    import_translation(case / "weights.pt", folder / "model", options)
    return load_translation(folder / "model")


def test_the_golden_cases_are_here() -> None:
    assert len(CASES) == 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_checkpoint_gives_the_log_probabilities_of_the_library(
    case: Path, tmp_path: Path
) -> None:
    system, expected = imported(case, tmp_path).translator, load_file(case / "io.safetensors")
    pairs = [name.split(".")[0] for name in expected if name.endswith(".source")]
    memory = system.encode([expected[f"{pair}.source"] for pair in sorted(pairs)])
    assert len(pairs) == 3
    for number, pair in enumerate(sorted(pairs)):
        target = expected[f"{pair}.target"].tolist()
        ours = forced(system, memory, number, target, attention=True)
        torch.testing.assert_close(
            ours.log_probs, expected[f"{pair}.log_probs"], rtol=1e-5, atol=1e-5
        )
        if (theirs := expected.get(f"{pair}.attention")) is not None:
            assert ours.attention is not None
            width = theirs.shape[1]
            torch.testing.assert_close(ours.attention[:, :width], theirs, rtol=1e-5, atol=1e-5)
