"""int8 weights in model folders: exact to restore, refused if changed, the same guarantees."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from sruserve.kernels.integer_linear import IntegerLinear
from sruserve.kernels.linear import PanelLinear
from sruserve.model import inspect
from sruserve.model.config import ModelConfig
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.errors import CheckpointError, ConfigError, FolderError
from sruserve.model.folder import Model, load_model, read_folder, save_model
from sruserve.model.folder_files import model_digest
from sruserve.model.heads.config import HeadConfig
from sruserve.model.inspect import facts
from sruserve.model.network import Network
from sruserve.model.quantized import output_axes, restored_tensors, stored_tensors
from tests.model import test_families as families
from tests.support import PRINTABLE, random_config, random_tensors

PRINTABLE_FILE = {"bytes.json": json.dumps(PRINTABLE).encode()}


def int8(config: ModelConfig) -> ModelConfig:
    return config.model_copy(update={"weights": "int8"})


def network(form: str) -> Network:
    options = {"input_size": 6, "hidden_size": 10, **families.FORMS[form]}
    config = int8(random_config("encode", model_type=form.split("-")[0], **options))
    stored = stored_tensors(config, random_tensors(config))
    return Network(config, restored_tensors(config, stored, "test"), torch.float32)


@pytest.fixture(scope="module", params=families.FORMS)
def model(request: pytest.FixtureRequest) -> Network:
    return network(request.param)


def network_of(model: Model) -> Network:
    assert isinstance(model.network, Network)
    return model.network


def products(model: Network) -> list[object]:
    """Every linear layer that multiplies whole inputs."""
    linear_layers = []
    for layer in model.layers:
        parts = [getattr(layer, name, None) for name in ("linear", "projection", "narrow")]
        parts += [getattr(layer, "keys_values", None)]
        parts += [getattr(getattr(layer, "cell", None), "linear", None)]
        linear_layers += [part for part in parts if part is not None]
    return linear_layers


def test_every_product_of_whole_inputs_is_computed_in_integers(model: Network) -> None:
    assert products(model)
    assert all(isinstance(product, IntegerLinear) for product in products(model))


@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    cuts=st.lists(st.floats(0, 1), max_size=3),
    seed=st.integers(0, 1 << 30),
)
def test_any_split_in_any_company_gives_the_bits_of_the_whole_alone(
    model: Network, lengths: list[int], cuts: list[float], seed: int
) -> None:
    inner = families.test_any_split_in_any_company_gives_the_bits_of_the_whole_alone
    inner.hypothesis.inner_test([model], lengths, cuts, seed)  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = int8(random_config("generate", vocab_size=len(PRINTABLE), layer_norm=True))
    save_model(tmp_path / "lm", config, random_tensors(config), PRINTABLE_FILE)
    return tmp_path / "lm"


def test_a_folder_holds_int8_and_scales_and_restores_what_it_holds(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    assert stored["rnn.rnn_lst.0.weight"].dtype is torch.int8
    assert stored["rnn.rnn_lst.0.weight.scale"].shape == (96,)
    assert stored["embedding.weight.scale"].shape == (len(PRINTABLE),)
    assert stored["output.weight"].dtype is torch.int8
    assert stored["output.bias"].dtype is torch.float32
    contents = read_folder(folder)
    weight = contents.tensors["rnn.rnn_lst.0.weight"]
    scale = stored["rnn.rnn_lst.0.weight.scale"]
    assert torch.equal(weight, stored["rnn.rnn_lst.0.weight"].float() * scale)
    again = stored_tensors(contents.config, contents.tensors)
    assert again.keys() == stored.keys()
    assert all(torch.equal(again[name], stored[name]) for name in stored)


def test_a_folder_with_floats_keeps_its_digest_and_its_config(folder: Path, tmp_path: Path) -> None:
    contents = read_folder(folder)
    config = contents.config.model_copy(update={"weights": None})
    plain = save_model(tmp_path / "plain", config, contents.tensors, PRINTABLE_FILE)
    assert "weights" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    assert plain.digest == model_digest(config, contents.tensors, PRINTABLE_FILE)
    assert plain.digest != load_model(folder).digest


def test_inspect_says_how_the_weights_are_used(folder: Path) -> None:
    assert facts(load_model(folder))["weights"] == (
        "int8 with a scale per output, multiplied in integers"
    )
    assert facts(load_model(folder, "bfloat16"))["weights"] == (
        "int8 with a scale per output, restored to bfloat16 at load"
    )


def test_on_a_gpu_inspect_says_that_weights_are_restored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(folder)
    monkeypatch.setattr(model.network, "device", torch.device("cuda", 0))
    monkeypatch.setattr(inspect, "describe_device", str)
    assert facts(model)["weights"].endswith("restored to float32 at load")


def test_in_bfloat16_the_restored_weights_are_used(folder: Path) -> None:
    model = network_of(load_model(folder, "bfloat16"))
    contents = read_folder(folder)
    config = contents.config.model_copy(update={"weights": None})
    plain = Network(config, contents.tensors, torch.bfloat16)
    ids = torch.arange(20)
    (ours,) = families.run(model, [ids], model.layout.allocate(1), [0])
    (theirs,) = families.run(plain, [ids], plain.layout.allocate(1), [0])
    assert torch.equal(ours, theirs)


Change = Callable[[dict[str, Tensor]], object]
NAME = "rnn.rnn_lst.0.weight"


def put(name: str, place: int, value: float) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[place] = value

    return change


def halve(tensors: dict[str, Tensor]) -> None:
    tensors[NAME] //= 2


def retype(name: str, dtype: torch.dtype) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].to(dtype)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{NAME}.scale"), rf"{NAME}\.scale is missing"),
        (lambda tensors: tensors.pop(NAME), rf"{NAME} is missing"),
        (retype(NAME, torch.float32), rf"{NAME} holds torch\.float32, not torch\.int8"),
        (retype(f"{NAME}.scale", torch.bfloat16), r"scale holds torch\.bfloat16, not"),
        (retype("output.bias", torch.int8), r"output\.bias holds torch\.int8, not floats"),
        (
            lambda tensors: tensors.update({f"{NAME}.scale": torch.ones(95)}),
            r"scale has shape \[95\], not \[96\]",
        ),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "extra is not expected"),
        (put(f"{NAME}.scale", 3, torch.nan), r"scale must hold positive, finite numbers"),
        (put(f"{NAME}.scale", 3, torch.inf), r"scale must hold positive, finite numbers"),
        (put(f"{NAME}.scale", 3, 0), r"scale must hold positive, finite numbers"),
        (put(f"{NAME}.scale", 3, -1), r"scale must hold positive, finite numbers"),
        (put(f"{NAME}.scale", 3, 3e38), "not as `sruserve export quantize` writes"),
        (put(f"{NAME}.scale", 3, 1 / 3), "its scale has 17 bits"),
        (put(NAME, 0, -128), "largest number must be 127"),
        (halve, "largest number must be 127"),
    ],
)
def test_int8_weights_that_we_never_write_are_refused_by_name(
    folder: Path, change: Change, message: str
) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    config = load_model(folder).config
    digest = model_digest(config, tensors, PRINTABLE_FILE)
    save_file(tensors, folder / "model.safetensors", {"digest": digest})
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_other_int8_numbers_are_another_model(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    column = tensors[NAME][:, 0]
    column[column.abs() < 100] = 5
    save_file(tensors, folder / "model.safetensors", {"digest": load_model(folder).digest})
    with pytest.raises(FolderError, match="changed after its import"):
        load_model(folder)


@pytest.mark.parametrize("weights", ["int4", "bf16", 8])
def test_other_kinds_of_weights_are_refused(folder: Path, weights: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["weights"] = weights
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="weights: Input should be 'int8'"):
        load_model(folder)


def test_a_folder_of_floats_that_says_int8_is_refused(folder: Path, tmp_path: Path) -> None:
    contents = read_folder(folder)
    config = contents.config.model_copy(update={"weights": None})
    save_model(tmp_path / "plain", config, contents.tensors, PRINTABLE_FILE)
    described = json.loads((tmp_path / "plain" / "config.json").read_text())
    described["weights"] = "int8"
    (tmp_path / "plain" / "config.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=r"embedding\.weight\.scale is missing"):
        load_model(tmp_path / "plain")


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_not_rounded(tmp_path: Path, broken: float) -> None:
    config = int8(random_config("encode"))
    tensors = random_tensors(config)
    tensors[NAME][0, 0] = broken
    with pytest.raises(CheckpointError, match=rf"{NAME} holds NaN or infinity"):
        save_model(tmp_path / "m", config, tensors)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "around",
    [
        {"head": HeadConfig(tied=True, bias=False), "input_size": 24},
        {"head": HeadConfig(experts=2, latent_size=8)},
        {
            "embedding": EmbeddingConfig(size=16, cutoffs=(10, 20), divide=2),
            "head": HeadConfig(size=16, cutoffs=(10, 20), divide=2),
        },
    ],
    ids=["tied", "mixture", "adaptive"],
)
def test_heads_and_embeddings_of_every_kind_are_near_those_of_the_floats(
    tmp_path: Path, around: dict[str, object]
) -> None:
    config = random_config("generate", vocab_size=40, **around)  # type: ignore[arg-type]
    tensors = random_tensors(config)
    rounded = save_model(tmp_path / "m", int8(config), tensors)
    ids = torch.arange(40)
    scores = []
    for each in (Network(config, tensors, torch.float32), network_of(rounded)):
        (hidden,) = families.run(each, [ids], each.layout.allocate(1), [0])
        scores.append(each.log_probs(each.logits(hidden)).softmax(1))
    assert float((scores[0] - scores[1]).abs().max()) < 0.15


def test_recurrent_weights_of_gated_layers_stay_floats() -> None:
    config = int8(random_config("encode", model_type="lstm"))
    names = output_axes(config)
    assert all("weight_ih" in name for name in names)
    stored = stored_tensors(config, random_tensors(config))
    assert stored["rnn.weight_hh_l0"].dtype is torch.float32


def test_layers_around_the_stack_stay_floats(tmp_path: Path) -> None:
    layers = [{"type": "linear", "size": 16}]
    config = int8(random_config("encode", input_width=9, input_layers=layers))
    model = save_model(tmp_path / "m", config, random_tensors(config))
    assert all(isinstance(product, IntegerLinear) for product in products(network_of(model)))
    assert not any(isinstance(product, PanelLinear) for product in products(network_of(model)))
