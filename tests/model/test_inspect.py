"""The description of a model, on the CPU and on a GPU (a stand-in)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sruserve.model import exactness, inspect
from sruserve.model.folder import Model, load_model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.inspect import facts
from tests.support import random_model


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return random_model(tmp_path / "m", vocab_size=9)


def test_on_the_cpu_the_device_the_kernel_and_exactness_are_reported(model: Model) -> None:
    lines = facts(model)
    assert lines["device"] == "cpu"
    assert lines["kernel"].startswith("c-")
    assert lines["exactness"] == "bit for bit: any split, any batch"


def test_labels_are_reported_without_what_a_terminal_would_obey(tmp_path: Path) -> None:
    model = random_model(tmp_path / "m", "classify", vocab_size=9, labels=("\x1b]0;a\x07", "é"))
    assert facts(model)["labels"] == r"\x1b]0;a\x07, é"


@pytest.mark.parametrize(
    ("fast", "exactness"),
    [(False, "bit for bit by design"), (True, "to rounding")],
)
def test_on_a_gpu_fast_says_what_it_gives_up(
    model: Model, monkeypatch: pytest.MonkeyPatch, fast: bool, exactness: str
) -> None:
    monkeypatch.setattr(model.network, "device", torch.device("cuda", 0))
    monkeypatch.setattr(model.network, "fast", fast)
    monkeypatch.setattr(inspect, "describe_device", lambda device: f"{device} (Example)")
    lines = facts(model)
    assert lines["device"] == "cuda:0 (Example)"
    assert lines["kernel"] == "triton"
    assert lines["exactness"].startswith(exactness)


def test_a_gpu_that_auto_passes_over_for_a_family_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atr = random_model(tmp_path / "atr", vocab_size=9, model_type="atr")
    before = random_model(tmp_path / "before", vocab_size=9, model_type="gru", reset_after=False)
    others = [
        random_model(tmp_path / family, vocab_size=9, model_type=family)
        for family in ("sru", "gru", "lstm", "rnn")
    ]
    assert "gpu" not in facts(atr)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for model in (atr, before):
        assert facts(model)["gpu"].startswith("auto computes its layers on the CPU, because no GPU")
    assert not any("gpu" in facts(model) for model in others)


def test_on_a_gpu_layers_whose_steps_torch_multiplies_agree_to_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "describe_device", str)
    attending: dict[str, Any] = {"model_type": "srupp", "proj_size": 8, "window": 3}
    for options, beginning in (
        ({"model_type": "atr"}, "to rounding, not bit for bit: torch and cuDNN"),
        (attending, "bit for bit by design"),
    ):
        model = random_model(tmp_path / options["model_type"], vocab_size=9, **options)
        monkeypatch.setattr(model.network, "device", torch.device("cuda", 0))
        assert facts(model)["exactness"].startswith(beginning)


def test_without_the_compiled_kernel_a_layer_with_a_product_in_each_step_is_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gru = random_model(tmp_path / "gru", vocab_size=9, model_type="gru")
    sru = random_model(tmp_path / "sru", vocab_size=9)
    monkeypatch.setattr(exactness, "kernel_name", lambda _: "reference")
    assert facts(gru)["exactness"].startswith("1e-5")
    assert facts(sru)["exactness"].startswith("bit for bit")


def test_the_layers_around_the_stack_are_described(tmp_path: Path) -> None:
    head = HeadConfig(pooling="final", final=("0.c", "1.c"), activation="sigmoid")
    classifier = facts(random_model(tmp_path / "c", "classify", vocabulary=[97, 98], head=head))
    assert classifier["pooling"] == "final 0.c 1.c"
    head = HeadConfig.model_validate({"pooling": ["last", "final", "mean"], "final": ["0.c"]})
    several = facts(random_model(tmp_path / "s", "classify", vocabulary=[97, 98], head=head))
    assert several["pooling"] == "last, final 0.c, mean"
    assert classifier["head"] == "linear, 3 outputs"
    assert classifier["activation"] == "sigmoid"
    assert classifier["vocabulary"] == "2 (bytes)"
    tied = HeadConfig(tied=True, bias=False)
    generator = facts(random_model(tmp_path / "g", vocab_size=9, hidden_size=16, head=tied))
    assert generator["head"] == "linear, 9 outputs without bias, tied to the embedding"
    assert not {"pooling", "activation"} & set(generator)
    assert "head" not in facts(random_model(tmp_path / "e", "encode"))


def test_the_state_of_a_crf_includes_its_window(tmp_path: Path) -> None:
    head = HeadConfig(crf=True, crf_window=10)
    lines = facts(random_model(tmp_path / "t", "tag", vocab_size=9, head=head))
    assert lines["head"] == "linear, 5 outputs, CRF with a window of 10 steps"
    assert lines["state"] == f"{4 * (2 * 24 + 1 + 5 * 21):,} bytes per stream"
    whole = facts(random_model(tmp_path / "b", "tag", vocab_size=9, head=head, bidirectional=True))
    assert whole["head"] == "linear, 5 outputs, CRF"
    assert whole["state"].startswith("none: it is bidirectional")


def test_the_version_that_was_chosen_among_several_is_reported(tmp_path: Path) -> None:
    random_model(tmp_path / "poems" / "2", vocab_size=9)
    random_model(tmp_path / "poems" / "10", vocab_size=9)
    assert facts(load_model(tmp_path / "poems"))["model"] == "poems, version 10"
    assert facts(load_model(tmp_path / "poems" / "2"))["model"] == "2"


def test_a_convolution_says_how_an_input_is_padded(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model_type": "cnn", "vocab_size": 9, "padding": [2, 0, 4]}
    lines = facts(random_model(tmp_path / "c", "classify", **options))
    assert lines["stack"] == "1 layer, 16 → 72, unidirectional"
    assert lines["pooling"] == "max, in the stack"
    assert lines["note"] == (
        "max over time of windows of 3, 4, 5 steps, with 2, 0, 4 zeros before and after an input; "
        "one of fewer than 4 steps is filled up with zeros"
    )
    bare = facts(random_model(tmp_path / "b", "classify", model_type="cnn", vocab_size=9))
    assert "with no zeros before and after an input" in bare["note"]
    assert bare["state"] == f"{4 * (72 + 72 + 48 + 24 + 72 + 1):,} bytes per stream"
