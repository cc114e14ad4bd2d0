"""Every system of docs/families.md has the same results over HTTP, KServe v2 and in Python."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import sruserve
from tests.readers import save_reader
from tests.server.conftest import Serve
from tests.server.kserve.support import connected, tensor, texts, v1, values_of
from tests.server.translation.models import save_random_system
from tests.support import save_random_model

TABLE = (Path(__file__).parent.parent.parent / "docs/families.md").read_text()
ROWS = [[0.3 * ((i * 7 + j) % 5) - 0.5 for j in range(8)] for i in range(11)]
QUESTION, CONTEXT = "Where does Ada live?", "Ada lives in Lisbon. Ben lives in Porto."

SYSTEMS: dict[str, list[dict[str, Any]]] = {
    "SRU 1.x, 2.0 to 2.1.7": [
        {"use_tanh": True, "layer_norm": True, "normalize_after": True, "norm": "std"},
        {"use_selu": True, "rescale": True},
    ],
    "SRU 2.1.9 to 2.6.0": [
        {"layer_norm": True, "projection_size": 6},
        {"bidirectional": True, "has_skip_term": False},
    ],
    "SRU 3.0.0.dev": [{"projection_size": (4, 5), "layer_norm": True, "normalize_after": True}],
    "SRU++ (3.0.0.dev1 to dev6)": [
        {"model_type": "srupp", "proj_size": 12, "num_heads": 2, "window": 8}
    ],
    "LRN, ATR, oLRN": [
        {"model_type": "lrn", "rms_norm": True},
        {"model_type": "lrn", "output_gate": True, "activation": "identity"},
        {"model_type": "atr"},
    ],
    "the LRN repository's SRU, LSTM, GRU": [
        {"highway_block": True, "biased_blocks": True},
        {"model_type": "lstm"},
        {"model_type": "gru"},
    ],
    "QRNN": [
        {"model_type": "qrnn", "window": 2, "zoneout": 0.1},
        {"model_type": "qrnn", "window": 1, "output_gate": False},
    ],
    "QRNN + highway": [{"model_type": "qrnn", "window": 1, "highway": True}],
    "LSTM, GRU, RNN": [
        {"model_type": "lstm", "proj_size": 5, "bidirectional": True},
        {"model_type": "gru", "bidirectional": True},
        {"model_type": "rnn", "nonlinearity": "relu"},
    ],
    "DrQA's reader (Chen et al. 2017)": [{"reader": "sru"}, {"reader": "lstm"}],
    "Transformer + SRU (translation)": [{"system": "transformer"}],
    "encoder and decoder with attention (translation)": [
        {"system": "lstm-general"},
        {"system": "sru-mlp"},
    ],
    "CNN for sentences (Kim 2014)": [{"model_type": "cnn", "filter_widths": (2, 3)}],
}
CASES = [(row, number) for row, forms in SYSTEMS.items() for number in range(len(forms))]


def save(folder: Path, options: dict[str, Any]) -> Path:
    if "reader" in options:
        return save_reader(folder, options["reader"])
    if "system" in options:
        return save_random_system(folder, options["system"]).path
    return save_random_model(folder, "encode", input_size=8, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    parent = tmp_path_factory.mktemp("systems")
    return {case: save(parent / f"m{i}", SYSTEMS[case[0]][case[1]]) for i, case in enumerate(CASES)}


@pytest.fixture(scope="module")
def client(serve: Serve, saved: dict[tuple[str, int], Path]) -> Iterator[httpx.Client]:
    with serve(model_folders=tuple(saved.values())) as (client, _):
        yield client


def encoded(client: httpx.Client, folder: Path) -> list[list[Any]]:
    """What each protocol has for the same steps."""
    (result,) = v1(client, "encode", model=folder.name, features=ROWS)
    with connected(client) as connection:
        tensors = connection.infer(folder.name, [tensor("features", ROWS)])
    with sruserve.load(folder) as model:
        outputs = model.encode(ROWS).outputs
    return [result["outputs"], tensors.as_numpy("outputs").tolist(), outputs.tolist()]


def answered(client: httpx.Client, folder: Path) -> list[list[Any]]:
    body = {"question": QUESTION, "context": CONTEXT}
    (result,) = v1(client, "answer", model=folder.name, **body)
    with connected(client) as connection:
        inputs = [texts(value, name=name) for name, value in body.items()]
        tensors = connection.infer(folder.name, inputs)
    with sruserve.load(folder) as model:
        best = model.answer(QUESTION, CONTEXT).best
    (answer,) = result["answers"]
    kserve = [values_of(tensors, name)[0] for name in ("answers", "starts", "ends")]
    return [
        [answer["text"], answer["start"], answer["end"]],
        kserve,
        [best.text, best.start, best.end],
    ]


def translated(client: httpx.Client, folder: Path) -> list[list[Any]]:
    source = "a4 a9 a7"
    options: dict[str, Any] = {"beam_size": 3, "max_tokens": 9}
    (result,) = v1(client, "translate", model=folder.name, input=source, scores=True, **options)
    with connected(client) as connection:
        inputs = [texts(source, name="text_input")]
        tensors = connection.infer(folder.name, inputs, parameters=options)
    with sruserve.load(folder) as model:
        translation = model.translate(source, **options)
    kserve = [*values_of(tensors, "text_output"), *values_of(tensors, "score")]
    return [[result["text"], result["score"]], kserve, [translation.text, translation.score]]


@pytest.mark.parametrize(("row", "number"), CASES)
def test_a_system_has_the_same_results_over_http_kserve_and_in_python(
    client: httpx.Client, saved: dict[tuple[str, int], Path], row: str, number: int
) -> None:
    options, folder = SYSTEMS[row][number], saved[row, number]
    ask = answered if "reader" in options else translated if "system" in options else encoded
    http, kserve, python = ask(client, folder)
    assert http
    assert http == kserve == python


def test_every_row_of_the_table_is_served_here() -> None:
    rows = re.findall(r"^\| ([^|]*) \|.*tests/.*\|$", TABLE, re.MULTILINE)
    assert rows == list(SYSTEMS)
