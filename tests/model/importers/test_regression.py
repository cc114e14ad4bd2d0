"""Regressors from bare checkpoints, and the example that trains one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sruserve.model.importers.build import import_checkpoint
from tests import preloaded
from tests.model.importers.running import agree, hidden, imported, refused
from tests.support import CPU

ROOT = Path(__file__).parents[3]
FORMAT = ("--format", "torch")


def module(outputs: int, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(2)
    rnn = nn.GRU(3, 5, **options)
    fc = nn.Linear(5 * (2 if options else 1), outputs)
    tensors = {f"rnn.{name}": t for name, t in rnn.state_dict().items()}
    return tensors | {f"fc.{name}": t for name, t in fc.state_dict().items()}


def test_names_units_and_quantiles_are_options(tmp_path: Path) -> None:
    options = {"units": ["MW", "€"], "quantiles": [0.1, 0.9]}
    names = ["load", "price"]
    model = imported(tmp_path, module(4), "regress", *FORMAT, options=options, labels=names)
    assert model.config.regression is not None
    described = model.config.regression.model_dump(exclude_defaults=True)
    assert described == {"names": ("load", "price"), "units": ("MW", "€"), "quantiles": (0.1, 0.9)}
    assert model.config.outputs == 4
    assert model.config.architectures == ("GRUForRegression",)


def test_values_are_numbered_without_names(tmp_path: Path) -> None:
    model = imported(tmp_path, module(2), "regress", *FORMAT, options={"steps": "every"})
    assert model.config.regression is not None
    assert model.config.regression.names == ("0", "1")


def test_a_regressor_of_both_directions_names_its_pooling(tmp_path: Path) -> None:
    tensors = module(2, bidirectional=True)
    assert '"pooling" in --options' in refused(tmp_path, tensors, "regress", *FORMAT)
    (tmp_path / "every").mkdir()
    model = imported(tmp_path / "every", tensors, "regress", *FORMAT, options={"steps": "every"})
    assert model.config.head.pooling == "last"


@pytest.mark.parametrize(
    ("options", "names", "says"),
    [
        ({}, ["a"], "names 1 values with 1 outputs each, but the head has 4"),
        ({"quantiles": [0.1, 0.5, 0.9]}, None, "names 1 values with 3 outputs each"),
        ({"quantiles": [2]}, None, "quantiles.0: Input should be less than 1"),
        ({"forecasts": True}, None, "forecasts must have a value for each feature"),
        ({"steps": "some"}, None, "steps: Input should be 'last' or 'every'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, options: dict[str, Any], names: list[str] | None, says: str
) -> None:
    files = {"options": options} | ({} if names is None else {"labels": names})
    assert says in refused(tmp_path, module(4), "regress", *FORMAT, **files)


def test_the_example_trains_a_forecaster_that_is_served_exactly(tmp_path: Path) -> None:
    out = tmp_path / "trained"
    command = ("-m", "examples.train_forecaster", "--out", str(out))
    done = preloaded.run(*command, "--updates", "3", "--width", "8", folder=ROOT)
    assert done.returncode == 0, done.stderr
    model = import_checkpoint(
        out / "weights.pt", tmp_path / "model", "regress", out / "options.json",
        labels=out / "names.json",
    )  # fmt: skip
    assert json.loads((out / "names.json").read_text()) == ["load"]
    from examples.train_forecaster import Forecaster, made_up_load

    theirs = Forecaster(8)
    theirs.load_state_dict(torch.load(out / "weights.pt", weights_only=True))
    load = made_up_load(100, seed=9)
    with torch.inference_mode():
        agree(model.network.logits(hidden(model, load)), theirs(load[None])[0])
    assert model.network.device == CPU
