"""Networks as people write them, saved live: their HTTP answers are the modules' own."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sruserve
from sruserve.model.folder import Model
from tests.server.conftest import Serve
from tests.tracing.expected import expected, made
from tests.tracing.networks import FEATURES, NETWORKS, WORDS
from tests.tracing.test_networks import pytestmark as pytestmark

LENGTHS = (1, 7, 40)
Saved = dict[str, tuple[nn.Module, Model]]


def folder_of(name: str) -> str:
    return name.replace(" ", "-").replace(",", "")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Saved]:
    """The folders of all networks, and each module with its model."""
    parent = tmp_path_factory.mktemp("saved")
    pairs: Saved = {}
    for name, network in NETWORKS.items():
        module, task = made(network), cast("Any", network.task)
        folder = parent / folder_of(name)
        pairs[name] = module, sruserve.save(module, folder, task, **network.options)
    return parent, pairs


@pytest.fixture(scope="module")
def server(serve: Serve, saved: tuple[Path, Saved]) -> Iterator[httpx.Client]:
    with serve(models=saved[0], model_folders=()) as (client, _):
        yield client


@pytest.mark.parametrize("name", NETWORKS)
def test_a_reply_is_the_modules_own_answer(
    server: httpx.Client, saved: tuple[Path, Saved], name: str
) -> None:
    module, model = saved[1][name]
    for length in LENGTHS:
        torch.manual_seed(length)
        ids = model.config.vocab_size is not None
        x = torch.randint(WORDS, (length,)) if ids else torch.randn(length, model.config.width)
        assert ids or model.config.width in (1, FEATURES)
        time_first = type(module).__name__ == "LanguageModel"
        answers = expected(module, model, x, time_first=time_first)
        if model.config.task == "generate" and len(answers) < length:  # only those of the last step
            prefixes = [x[: steps + 1] for steps in range(length)]
            answers = torch.cat([expected(module, model, part, time_first) for part in prefixes])
        body = {"model": folder_of(name), "input" if ids else "features": x.tolist()}
        result = post(server, model.config.task, body)
        np.testing.assert_allclose(
            numbers(model, result), of_module(model, x, answers), atol=1e-5, rtol=1e-5
        )


def post(client: httpx.Client, task: str, body: dict[str, Any]) -> dict[str, Any]:
    """The result of the route of a task."""
    path = "/v1/score" if task == "generate" else f"/v1/{task}"
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()["results"][0]
    return result


def numbers(model: Model, result: dict[str, Any]) -> Any:
    """The numbers of a reply that `of_module` computes too."""
    match model.config.task:
        case "classify":
            assert result["scores"][result["label"]] == max(result["scores"].values())
            return list(result["scores"].values())
        case "tag":
            labels = [model.labels.index(token["label"]) for token in result["tokens"]]
            return [*labels, *(token["score"] for token in result["tokens"])]
        case "regress":
            rows = result["steps"] or [result["values"]]
            return [_values(row) for row in rows]
        case _:
            return result["log_likelihood"] or 0.0


def _values(row: Any) -> list[float]:
    nested = isinstance(row, dict)
    return [number for value in row.values() for number in _values(value)] if nested else [row]


def of_module(model: Model, x: Tensor, answers: Tensor) -> Any:
    """The same numbers from the module's answers, (steps, outputs) or (1, outputs)."""
    match model.config.task:
        case "classify":
            return answers[-1].tolist()
        case "tag":
            return [*answers.argmax(1).tolist(), *answers.max(1).values.tolist()]
        case "regress":
            return answers.tolist()
        case _:
            steps = zip(answers[:-1], x[1:].tolist(), strict=True)
            return sum(math.log(row[token]) for row, token in steps)
