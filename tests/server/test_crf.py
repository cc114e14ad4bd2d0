"""Tags of a model with a CRF: the best path through each whole input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from sruserve.kernels import single
from sruserve.model.folder import Model, load_model
from sruserve.model.heads.config import HeadConfig
from sruserve.server.http.responses.tag import TagReply
from tests.server.conftest import CHARACTERS, TAGS, Serve
from tests.server.posting import refusal
from tests.support import save_random_model

TEXTS = ("Ada Lovelace lived in London", "a", "To be, or not to be")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = {"labels": TAGS, "vocabulary": CHARACTERS}
    path = tmp_path_factory.mktemp("models") / "crf"
    return save_random_model(path, "tag", head=HeadConfig(crf=True), bidirectional=True, **options)


@pytest.fixture(scope="module")
def server(serve: Serve, folder: Path) -> Iterator[httpx.Client]:
    with serve(model_folders=(folder,), models=None) as (client, _):
        yield client


def best_path(model: Model, text: str) -> tuple[list[str], list[str]]:
    """The labels of the best path, and the likeliest label of each step."""
    assert model.codec is not None
    assert model.network.crf is not None
    ids = torch.from_numpy(model.codec.encode(text)[0])
    hidden = model.network.hidden(ids, single(model.network.layout.allocate(1), len(ids)))
    scores = model.network.logits(hidden)
    path = model.network.crf.decode(scores)
    return [TAGS[i] for i in path.tolist()], [TAGS[i] for i in scores.argmax(1).tolist()]


def test_labels_are_those_of_the_best_path(server: httpx.Client, folder: Path) -> None:
    model = load_model(folder)
    reply = server.post("/v1/tag", json={"input": list(TEXTS)}).json()["results"]
    differs = False
    for text, result in zip(TEXTS, reply, strict=True):
        path, likeliest = best_path(model, text)
        assert [token["label"] for token in result["tokens"]] == path
        assert all(0 < token["score"] <= 1 for token in result["tokens"])
        differs |= path != likeliest
    assert differs
    assert reply == [
        server.post("/v1/tag", json={"input": text}).json()["results"][0] for text in TEXTS
    ]


def test_a_chunk_for_a_bidirectional_stack_is_refused(server: httpx.Client) -> None:
    reply = server.post("/v1/tag", json={"input": "Ada", "more": True})
    assert "it is bidirectional" in refusal(reply, 422, "cannot_stream", "more")


def test_no_label_of_a_whole_input_is_pending(server: httpx.Client) -> None:
    reply = server.post("/v1/tag", json={"input": TEXTS[0]})
    TagReply.model_validate_json(reply.content, strict=True)
    assert reply.json()["results"][0]["pending"] == 0
