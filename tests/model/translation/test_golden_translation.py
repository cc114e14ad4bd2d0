"""Every golden case of a translation system, made by the released code, through the import."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from sruserve.cli import app
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


def verified(model: Path, case: Path) -> tuple[int, str]:
    """The exit code of `sruserve verify`, and what it says."""
    result = CliRunner().invoke(app, ["verify", str(model), str(case)])
    return result.exit_code, " ".join(result.output.split())


def test_verify_compares_pairs_alone_and_together(tmp_path: Path) -> None:
    case = GOLDEN / "opennmt-lstm-general"
    imported(case, tmp_path)
    code, output = verified(tmp_path / "model", case / "io.safetensors")
    assert code == 0, output
    assert "checked: log_probs, attention" in output
    assert "agrees: largest difference" in output
    assert "2 runs" in output
    tensors = load_file(case / "io.safetensors")
    for name in ("1.log_probs", "2.attention"):
        changed = tensors[name].clone()
        changed[-1, 0] += 1e-3
        save_file(tensors | {name: changed}, tmp_path / "case.safetensors")
        code, output = verified(tmp_path / "model", tmp_path / "case.safetensors")
        assert code == 1
        assert f"DIFFERS ({name[2:]}, alone)" in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"0.source": None}, "pair 0 needs source, target"),
        ({"0.log_probs": None, "0.attention": None}, "a result to compare"),
        ({"0.source": torch.tensor([1.0])}, "must be lists of int64"),
        ({"0.target": torch.tensor([2])}, "a row of results for each target id"),
        ({"0.source": torch.tensor([19])}, "not in the vocabulary of 19 ids"),
        ({"1.target": torch.tensor([2, 3, 23])}, "not one of 23"),
        ({"1.log_probs": torch.zeros(3, 24)}, "log_probs has shape [3, 24], not [3, 23]"),
        ({"hidden": torch.zeros(1)}, "unknown tensors hidden"),
    ],
)
def test_a_case_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    case = GOLDEN / "opennmt-lstm-general"
    imported(case, tmp_path)
    tensors = load_file(case / "io.safetensors") | changes
    save_file({k: t for k, t in tensors.items() if t is not None}, tmp_path / "case.safetensors")
    code, output = verified(tmp_path / "model", tmp_path / "case.safetensors")
    assert code == 1
    assert message in output
