"""Kim's network as people write it in PyTorch: their layouts, and what weights do not show."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sruserve.model.network import network_shapes
from tests.model.importers.running import agree, hidden, imported, refused, run_import

WORDS, SIZE, CLASSES, WIDTHS, COUNTS = 13, 6, 3, (2, 3, 5), (4, 5, 4)
IDS = torch.tensor([3, 12, 0, 7, 7, 1, 9])


class Sentence(nn.Module):
    """Two-dimensional or one-dimensional convolutions over one or two embeddings."""

    def __init__(self, dims: int, channels: int = 1, full: bool = False) -> None:
        super().__init__()
        torch.manual_seed(dims + channels)
        for i in range(channels):
            setattr(self, f"embed{i}", nn.Embedding(WORDS, SIZE, padding_idx=1))
        self.channels, self.dims = channels, dims
        convs: list[nn.Module] = []
        for count, width in zip(COUNTS, WIDTHS, strict=True):
            pad = width - 1 if full else 0
            if dims == 2:
                convs.append(nn.Conv2d(channels, count, (width, SIZE), padding=(pad, 0)))
            else:
                convs.append(nn.Conv1d(channels * SIZE, count, width, padding=pad))
        self.convs = nn.ModuleList(convs)
        self.fc = nn.Linear(sum(COUNTS), CLASSES)

    def rows(self, ids: Tensor) -> list[Tensor]:
        """The rows of each channel."""
        return [getattr(self, f"embed{i}")(ids) for i in range(self.channels)]

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.rows(ids)
        if self.dims == 2:
            x = torch.stack(rows)[None]
            maps = [torch.relu(conv(x)).squeeze(3) for conv in self.convs]
        else:
            x = torch.cat(rows, 1).T[None]
            maps = [torch.relu(conv(x)) for conv in self.convs]
        pooled = torch.cat([F.max_pool1d(m, m.shape[2]).squeeze(2) for m in maps], 1)
        scores: Tensor = self.fc(pooled)[0]
        return scores


def renamed(module: nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    """A module's tensors with other beginnings of their names."""
    own = {}
    for name, tensor in module.state_dict().items():
        for old, new in names.items():
            name = new + name.removeprefix(old) if name.startswith(old) else name
        own[name] = tensor
    return own


def scores(folder: Path, tensors: Any, **files: Any) -> Tensor:
    model = imported(folder, tensors, "classify", **files)
    return model.network.logits(hidden(model, IDS)[-1:])[0]


@pytest.mark.parametrize(
    ("dims", "names"),
    [
        (2, {"embed0": "embed", "convs.": "convs1.", "fc": "fc1"}),
        (1, {"embed0": "embedding"}),
        (1, {"embed0": "module.words", "convs.": "module.convs.", "fc": "module.out"}),
        (2, {"embed0": "emb", "convs.": "conv_blocks."}),
    ],
    ids=["convs1", "one-dimensional", "wrapped", "blocks"],
)
def test_one_embedding_is_recognised_by_its_name_or_its_width(
    tmp_path: Path, dims: int, names: dict[str, str]
) -> None:
    network = Sentence(dims)
    with torch.no_grad():
        agree(scores(tmp_path, renamed(network, names)), network(IDS))


def test_convolutions_over_flattened_rows_are_read_with_their_stride(tmp_path: Path) -> None:
    network = Sentence(2)
    tensors = renamed(network, {"embed0": "embedding", "convs.": "conv_"})
    for i in range(3):
        tensors[f"conv_{i}.weight"] = tensors[f"conv_{i}.weight"].flatten(2)
    x, weight = network.rows(IDS)[0].view(1, 1, -1), tensors["conv_0.weight"]
    own = F.conv1d(x, weight, tensors["conv_0.bias"], stride=SIZE)
    torch.testing.assert_close(own, network.convs[0](x.view(1, 1, -1, SIZE)).squeeze(3))
    with torch.no_grad():
        agree(scores(tmp_path, tensors), network(IDS))


@pytest.mark.parametrize("dims", [1, 2])
def test_two_channels_are_read_in_the_order_of_the_option(tmp_path: Path, dims: int) -> None:
    network = Sentence(dims, channels=2, full=True)
    names = {"embed0": "non_static_embed", "embed1": "static_embed", "fc": "fc1"}
    tensors = renamed(
        network, {**names, "convs.2": "conv3", "convs.1": "conv2", "convs.0": "conv1"}
    )
    options: dict[str, Any] = {"padding": "full"}
    assert '"channels"' in refused(tmp_path, tensors, "classify", options=options)
    options["channels"] = ["non_static_embed", "static_embed"]
    with torch.no_grad():
        agree(scores(tmp_path, tensors, options=options), network(IDS))


def test_of_several_embeddings_the_option_names_the_one_that_is_read(tmp_path: Path) -> None:
    network = Sentence(2)
    tensors = renamed(network, {"embed0": "static_embed"})
    tensors["embed.weight"] = torch.randn(WORDS, SIZE)
    options = {"channels": ["static_embed"]}
    with torch.no_grad():
        agree(scores(tmp_path, tensors, options=options), network(IDS))
    result = run_import(tmp_path, tensors, "--task", "classify", options=options)
    assert "embed.weight is left out" in " ".join(result.output.split())


def test_vectors_are_read_where_there_is_no_embedding(tmp_path: Path) -> None:
    network = Sentence(2)
    tensors = {k: t for k, t in network.state_dict().items() if not k.startswith("embed")}
    model = imported(tmp_path, tensors, "classify")
    with torch.no_grad():
        ours = model.network.logits(hidden(model, network.rows(IDS)[0])[-1:])[0]
        agree(ours, network(IDS))


@pytest.mark.parametrize("trained", [True, False])
def test_short_inputs_are_filled_with_the_row_that_the_training_used(
    tmp_path: Path, trained: bool
) -> None:
    network = Sentence(1)
    if trained:  # without padding_idx, the row is trained as any other
        nn.init.normal_(next(network.parameters()))
    options = {"padding_idx": 1, "min_length": 9}
    model = imported(tmp_path, network.state_dict(), "classify", options=options)
    assert ("rnn.pad" in network_shapes(model.config)) is trained
    with torch.no_grad():
        ours = model.network.logits(hidden(model, IDS))
        for end in range(1, len(IDS) + 1):
            filled = torch.cat((IDS[:end], torch.ones(9 - end, dtype=torch.int64)))
            agree(ours[end - 1], network(filled))


def test_what_is_assumed_is_said(tmp_path: Path) -> None:
    result = run_import(tmp_path, Sentence(1).state_dict(), "--task", "classify")
    line = "assumed: padding 0, relu before the maximum, zeros after inputs of fewer than 5 steps"
    assert line in " ".join(result.output.split())
    assert "pooling" not in result.output


STATE = Sentence(1).state_dict()
SMALL = torch.randn(4, 4, 3)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"convs.1.weight": torch.ones(5, 7, 3)}, {}, "does not read embeddings of 6 columns"),
        ({"convs.1.bias": torch.ones(4)}, {}, "convs.1.bias has 4 numbers for 5 filters"),
        ({"convs.1.bias": None}, {}, "convs.1.bias is missing"),
        ({"convs.1.weight": torch.ones(5)}, {}, "it must be that of a Conv1d"),
        ({"convs.1.weight": torch.ones(5, 6, 3).long()}, {}, "in floats"),
        ({"convs.1.weight": torch.ones(5, 6, 300)}, {}, "filter_widths"),
        ({"convolution.weight": SMALL}, {}, "have no common name"),
        ({"bn.weight": torch.ones(13)}, {}, "bn.weight is not expected"),
        ({"fc.weight": torch.ones(3, 5)}, {}, "there are 13 filters, which run side by side"),
        ({}, {"padding": [1]}, "padding lists 1 numbers for 3 widths"),
        ({}, {"padding": "same"}, "padding"),
        ({}, {"padding_idx": 13}, "padding_idx is 13, which is no row"),
        ({}, {"channels": ["words"]}, "there is no matrix words.weight"),
        ({}, {"channels": ["embed0", "embed0"]}, "names an embedding twice"),
        ({}, {"channels": "embed0"}, "channels is embed0; it must be a list"),
        ({}, {"filter_widths": [3, 4, 5]}, "filter_widths is (3, 4, 5); the weights say (2, 3, 5)"),
        ({}, {"pooling": "max"}, "themselves: omit pooling"),
        ({}, {"pooling": "final"}, "themselves: omit pooling"),
        ({}, {"pooling": ["final", "max"]}, "themselves: omit pooling"),
        ({}, {"padding_idx": 2, "padding": 1}, "row 2 of the embedding is not zeros"),
        ({}, {"stride": 2}, "stride is unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Tensor | None], options: dict[str, Any], message: str
) -> None:
    tensors = {name: t for name, t in {**STATE, **change}.items() if t is not None}
    assert message in refused(tmp_path, tensors, "classify", options=options)


def test_channels_of_different_vocabularies_are_refused(tmp_path: Path) -> None:
    tensors = {**Sentence(1, channels=2).state_dict(), "embed1.weight": torch.ones(4, SIZE)}
    options = {"channels": ["embed0", "embed1"]}
    message = refused(tmp_path, tensors, "classify", options=options)
    assert "have different numbers of rows" in message


def test_padding_is_requested_where_networks_of_these_names_differ(tmp_path: Path) -> None:
    tensors = {name.replace("convs.", "conv1"): t for name, t in STATE.items()}
    assert '"padding" is not stored' in refused(tmp_path, tensors, "classify")


def test_the_first_programs_files_are_refused_by_name(tmp_path: Path) -> None:
    lua = b"\3\0\0\0\1\0\0\0\4\0\0\0\2\0\0\0\5\0\0\0model"
    assert "Lua's Torch7" in refused(tmp_path, lua, "classify")
    assert "Lua's Torch7" in refused(tmp_path, b"4\n1\n3\nV 1\n12\nnn.gModule\n", "classify")
    theano = pickle.dumps([["W", [0.5]]], protocol=0)
    assert "not unpickled" in refused(tmp_path, theano, "classify")


def test_recurrent_networks_with_convolutions_are_not_taken_for_one(tmp_path: Path) -> None:
    tensors = {**STATE, **{f"lstm.{k}": t for k, t in nn.LSTM(6, 5).state_dict().items()}}
    message = refused(tmp_path, tensors, "classify")
    assert "not expected" in message
    assert "convs.0.weight" in message
