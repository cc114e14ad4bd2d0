"""SRU++ against its releases: any options, sizes, windows, lengths and splits; and its importer."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

import sruserve.kernels.srupp as srupp_layer
from sruserve.cli import app
from sruserve.kernels.attention import attend
from sruserve.kernels.ragged import RaggedBatch, single
from sruserve.kernels.reference.attention import reference_attention
from sruserve.model.cells.srupp import SRUppConfig
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.folder import load_model
from sruserve.model.importers.format import Imported
from sruserve.model.importers.srupp import read
from sruserve.model.network import Network, network_shapes
from tests.model.importers.srupp_state_dicts import PLAIN, command, stack, state_dict
from tests.oracles.releases import folder_of, needs
from tests.preloaded import Preloaded

SCRIPT = Path(__file__).parent.parent / "oracles" / "srupp_oracle.py"
Ask = Callable[[dict[str, Any]], dict[str, Any]]


ROUNDINGS = 16  # how often what rounding the inputs does may be done on the way to the outputs
RELEASES = ("3.0.0.dev2", "3.0.0.dev3", "3.0.0.dev5", "3.0.0.dev6")


@pytest.fixture(scope="module", params=[pytest.param(r, marks=needs(r)) for r in RELEASES])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ask(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Runs a request in the release's own process; see `srupp_oracle.py`."""
    out = tmp_path_factory.mktemp("oracle") / "answer.pt"
    (requests, to), (answers, into) = os.pipe(), os.pipe()
    oracle = Preloaded(
        str(SCRIPT),
        streams=(requests, into, 2),
        environment={**os.environ, "PYTHONPATH": folder_of(release)},
    )
    os.close(requests)
    os.close(into)
    with os.fdopen(answers) as reader:
        with os.fdopen(to, "w") as writer:

            def run(request: dict[str, Any]) -> dict[str, Any]:
                print(json.dumps({**request, "out": str(out)}), file=writer, flush=True)
                assert reader.readline() == "done\n"
                return dict(torch.load(out, weights_only=True))

            yield run
        oracle.wait(300)


def network(imported: Imported, dtype: torch.dtype = torch.float32) -> Network:
    config = ModelConfig(
        architectures=(architecture(imported.rnn, "encode"),),
        model_type="srupp",
        task="encode",
        rnn=imported.rnn,
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in imported.tensors.items()}
    assert shapes == network_shapes(config)
    return Network(config, imported.tensors, dtype)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request to the oracle, with options in the words of `adapted`."""
    windowed = draw(st.booleans())
    bidirectional = not windowed and draw(st.booleans())
    heads = draw(st.integers(1, 3))
    layers = draw(st.integers(1, 4))
    count, steps = draw(st.integers(1, 3)), st.integers(1, 30)
    return {
        "seed": draw(st.integers(0, 9)),
        "options": {
            "input_size": draw(st.sampled_from([5, 8])),
            "hidden_size": 4 if bidirectional else 8,
            "proj_size": heads * draw(st.integers(4, 9)),
            "num_layers": layers,
            "num_heads": heads,
            "bidirectional": bidirectional,
            "rescale": draw(st.booleans()),
            "proj_input_to_hidden_first": draw(st.booleans()),
            "norm": draw(st.sampled_from(["before", "after", "none"])),
            "attn_layer_norm": draw(st.booleans()),
            "attention_every_n_layers": draw(st.integers(1, 3)),
            "attention_last_n_layers": draw(st.none() | st.integers(0, layers)),
        },
        "window": draw(st.integers(1, 9)) if windowed else None,
        "lengths": [draw(steps)] * count if windowed else [draw(steps) for _ in range(count)],
    }


def adapted(options: dict[str, Any], release: str) -> dict[str, Any]:
    """Options in the words of a release, less those that it does not have."""
    options = dict(options)
    norm, attn_layer_norm = options.pop("norm"), options.pop("attn_layer_norm")
    every, last = options.pop("attention_every_n_layers"), options.pop("attention_last_n_layers")
    options["layer_norm"] = norm != "none"
    if last is None or release.endswith("dev2"):
        options["attention_every_n_layers"] = every
    else:
        options["attention_last_n_layers"] = last
    if release.endswith("dev3"):
        options["normalization_type"] = {"none": 1, "before": 2, "after": 3}[norm]
    else:
        options["normalize_after"] = norm == "after"
    if release >= "3.0.0.dev5":
        options["attn_layer_norm"] = attn_layer_norm
    return options


# Of 6,000 drawn models, one whose rounding is magnified among the most.
MAGNIFYING = {
    "seed": 0,
    "options": {
        "input_size": 8,
        "hidden_size": 8,
        "proj_size": 4,
        "num_layers": 1,
        "num_heads": 1,
        "bidirectional": False,
        "rescale": True,
        "proj_input_to_hidden_first": True,
        "norm": "after",
        "attn_layer_norm": True,
        "attention_every_n_layers": 1,
        "attention_last_n_layers": None,
    },
    "window": None,
    "lengths": [1, 25],
}


def by_definition(*args: Any, one_step: bool = False) -> Tensor:
    """The reference, which reads one row and many alike."""
    del one_step
    return reference_attention(*args)


def run(
    model: Network, answer: dict[str, Any], lengths: list[int], cuts: list[int]
) -> tuple[list[Tensor], Tensor]:
    """Outputs of each sequence and end states, the input cut at `cuts`."""
    x, rows = answer["x"], torch.arange(len(lengths))
    start = model.layout.unpack(model.layout.allocate(len(lengths)))
    start |= {f"{layer}.c": c for layer, c in enumerate(answer["c_0"])}
    states = model.layout.pack(start)
    parts: list[list[Tensor]] = [[] for _ in lengths]
    begin = 0
    for end in [*sorted(cuts), max(lengths)]:
        chunks = [x[begin : min(end, n), b] for b, n in enumerate(lengths)]
        offsets = torch.tensor([0, *map(len, chunks)]).cumsum(0)
        h = model.hidden(torch.cat(chunks), RaggedBatch(offsets, states, rows, rows))
        for b, part in enumerate(torch.split(h, list(map(len, chunks)))):
            parts[b].append(part)
        begin = end
    entries = model.layout.unpack(states)
    ends = [entries[f"{layer}.c"] for layer in range(len(answer["c_0"]))]
    return [torch.cat(part) for part in parts], torch.stack(ends)


@settings(max_examples=40)
@given(request=requests(), cuts=st.sets(st.integers(1, 29), max_size=4))
@example(request=MAGNIFYING, cuts=set())
def test_any_model_gives_the_outputs_and_states_of_its_release(
    ask: Ask, release: str, request: dict[str, Any], cuts: set[int]
) -> None:
    """As near to the exact result as one can be whose numbers are rounded to float32.

    The release's own code gives the exact result, in float64. In float32, neither side is nearer
    to it: of 6,000 models, ours was farther in 46%, by 0.97 times as much (the geometric mean).
    How far depends on the model: one of a thousand has norms of nearly equal numbers, which magnify
    the rounding of both to more than 1e-5. So the bound is what rounding the weights and the inputs
    alone does to the exact result, several times over for the steps in between.
    """
    options, lengths, windowed = (
        request["options"],
        request["lengths"],
        request["window"] is not None,
    )
    options = adapted(options, release)
    answer = ask({**request, "options": options})
    imported = read(answer["state_dict"], {**options, "window": request["window"]}, "encode")
    assert isinstance(imported.rnn, SRUppConfig)
    model = network(imported)
    attends = any(imported.rnn.attends(layer) for layer in range(options["num_layers"]))
    assert model.supports_streaming == ((windowed or not attends) and not options["bidirectional"])
    inside = [cut for cut in cuts if cut < max(lengths)] if model.supports_streaming else []
    for run_attention in (attend, by_definition):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(srupp_layer, "attend", run_attention)
            outputs, ends = run(model, answer, lengths, inside)
        pairs = [(h, "h", (slice(0, lengths[b]), b)) for b, h in enumerate(outputs)]
        away = moved = 0.0
        for ours, name, place in [*pairs, (ends, "c_n", ())]:
            exact = answer[f"exact_{name}"][place]
            size = 1 + exact.abs()
            away = max(away, float(((ours - exact).abs() / size).max()))
            moved = max(moved, float((answer[f"moved_{name}"][place] / size).max()))
        assert away <= ROUNDINGS * moved


GOLDEN = sorted((Path(__file__).parent.parent / "golden").glob("srupp-*"))


def test_the_golden_cases_are_here() -> None:
    assert len(GOLDEN) == 2


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_a_golden_case_agrees_whole_and_in_splits(case: Path, tmp_path: Path) -> None:
    description = json.loads((case / "case.json").read_text())
    tensors = torch.load(case / "weights.pt", weights_only=True)
    result = command(
        tmp_path, tensors, "encode", **description["options"], window=description["window"]
    )
    assert result.exit_code == 0, result.output
    arguments = ["verify", str(tmp_path / "model"), str(case / "io.safetensors")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "5 runs" in result.output


@settings(max_examples=40)
@given(
    cuts=st.sets(st.integers(1, 39), max_size=5),
    window=st.integers(1, 12),
    normed=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_any_split_gives_the_same_bits(
    cuts: set[int], window: int, normed: bool, dtype: torch.dtype
) -> None:
    rnn = stack(window=window, layer_norm=normed, num_heads=2)
    tensors = {f"rnn.{name}": tensor for name, tensor in state_dict(rnn).items()}
    model = network(Imported(tensors, rnn), dtype)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(5))
    whole, split = model.layout.allocate(1), model.layout.allocate(1)
    h = model.hidden(x, single(whole, 40))
    parts = [
        model.hidden(x[first:last], single(split, last - first))
        for first, last in pairwise([0, *sorted(cuts), 40])
    ]
    assert torch.equal(torch.cat(parts), h)
    assert torch.equal(split, whole)


def test_a_model_that_depends_on_chunks_says_so(tmp_path: Path) -> None:
    tensors = state_dict(stack(layer_norm=True))
    result = command(
        tmp_path,
        tensors,
        "encode",
        num_heads=1,
        window=5,
        bidirectional=False,
        layer_norm=True,
        normalize_after=False,
    )
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "model")]).output
    assert "chunks of 5 positions" in " ".join(shown.split())
    assert stack().note is None
    assert stack(layer_norm=True, normalize_after=True).note is None


def test_a_model_without_a_window_reads_whole_inputs() -> None:
    assert stack().not_streamable_because is None
    assert "whole input" in str(stack(window=None).not_streamable_because)
    assert stack(window=None, attention_every_n_layers=4).not_streamable_because is None
    assert [name for name, _ in stack(window=None).states()] == ["0.c", "1.c", "2.c"]


def test_a_model_without_a_window_is_saved_and_loaded(tmp_path: Path) -> None:
    result = command(tmp_path, state_dict(stack()), "encode", **{**PLAIN, "window": None})
    assert result.exit_code == 0, result.output
    model = load_model(tmp_path / "model")
    assert "whole input" in str(model.network.not_streamable_because)
    assert isinstance(model.config.rnn, SRUppConfig)
    assert model.config.rnn.window is None
