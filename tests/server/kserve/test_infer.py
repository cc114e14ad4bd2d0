"""Inference by Triton's own client: what it gets is what `/v1` tells."""

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from tests.server.conftest import LABELS, WORDS
from tests.server.kserve.support import (
    address,
    connected,
    refused,
    tensor,
    texts,
    v1,
    values_of,
)

TEXTS = ["How far is it", "who", "a b c what where when " * 9]


def check_labels(result: Any, expected: list[dict[str, Any]]) -> None:
    """Every number is that of `/v1`, bit for bit."""
    assert values_of(result, "label") == [each["label"] for each in expected]
    assert values_of(result, "score") == [each["score"] for each in expected]
    scores = result.as_numpy("scores")
    assert scores.shape == (len(expected), len(LABELS))
    assert scores.tolist() == [list(each["scores"].values()) for each in expected]


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("binary_out", [True, False], ids=["binary-out", "json-out"])
def test_a_batch_of_texts_gets_the_labels_and_scores_of_v1(
    client: httpx.Client, binary_in: bool, binary_out: bool
) -> None:
    outputs = [
        triton.InferRequestedOutput(name, binary_data=binary_out)
        for name in ("scores", "label", "score")
    ]
    with connected(client) as connection:
        inputs = [texts(*TEXTS, binary=binary_in)]
        result = connection.infer("question", inputs, outputs=outputs, request_id="seven")
    check_labels(result, v1(client, "classify", model="question", input=TEXTS))
    response = result.get_response()
    assert response["id"] == "seven"
    assert (response["model_name"], response["model_version"]) == ("question", "1")
    assert [each["name"] for each in response["outputs"]] == ["scores", "label", "score"]


@given(
    word_lists=st.lists(
        st.lists(st.sampled_from(WORDS[1:]), min_size=1, max_size=12), min_size=1, max_size=5
    )
)
@settings(max_examples=30)
def test_any_texts_get_what_v1_tells_of_them(
    client: httpx.Client, word_lists: list[list[str]]
) -> None:
    inputs = [" ".join(words) for words in word_lists]
    with connected(client) as connection:
        result = connection.infer("question", [texts(*inputs)])
    check_labels(result, v1(client, "classify", model="question", input=inputs))


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
def test_bodies_are_packed_both_ways(client: httpx.Client, packing: str) -> None:
    repeated = TEXTS * 30
    with connected(client) as connection:
        result = connection.infer(
            "question",
            [texts(*repeated)],
            request_compression_algorithm=packing,
            response_compression_algorithm=packing,
        )
    check_labels(result, v1(client, "classify", model="question", input=repeated))


def test_requests_that_are_sent_together_are_answered_each(client: httpx.Client) -> None:
    with triton.InferenceServerClient(address(client), concurrency=8) as connection:
        calls = [connection.async_infer("question", [texts(text)]) for text in TEXTS * 5]
        results = [each.get_result() for each in calls]
    expected = v1(client, "classify", model="question", input=TEXTS) * 5
    for result, one in zip(results, expected, strict=True):
        check_labels(result, [one])


def test_the_asynchronous_client_gets_the_same(client: httpx.Client) -> None:
    async def ask() -> list[Any]:
        async with triton_aio.InferenceServerClient(address(client)) as connection:
            assert await connection.is_server_ready()
            assert await connection.is_model_ready("question")
            with pytest.raises(InferenceServerException, match="'nobody' is not found"):
                await connection.infer("nobody", [texts("a")])
            return await asyncio.gather(
                *(
                    connection.infer(
                        "question",
                        [texts(*TEXTS * 20)],
                        request_compression_algorithm=packing,
                        response_compression_algorithm=packing,
                    )
                    for packing in (None, "gzip", "deflate")
                )
            )

    expected = v1(client, "classify", model="question", input=TEXTS * 20)
    for result in asyncio.run(ask()):
        check_labels(result, expected)


def test_features_are_a_tensor_of_steps(client: httpx.Client) -> None:
    rows = [[0.1 * i - 0.3 * j for j in range(8)] for i in range(20)]
    (expected,) = v1(
        client, "classify", model="sensor", features=np.array(rows, np.float32).tolist()
    )
    with connected(client) as connection:
        for binary in (True, False):
            result = connection.infer("sensor", [tensor("features", rows, binary=binary)])
            assert result.as_numpy("scores").tolist() == list(expected["scores"].values())
            assert values_of(result, "label") == [expected["label"]]


def test_pairs_are_two_tensors(tasks: httpx.Client) -> None:
    ones, others = ["How far is it", "who"], ["a b c", "where"]
    expected = v1(tasks, "classify", model="pairs", input=ones, pair=others)
    with connected(tasks) as connection:
        result = connection.infer("pairs", [texts(*others, name="pair"), texts(*ones)])
        assert values_of(result, "label") == [each["label"] for each in expected]
        assert values_of(result, "score") == [each["score"] for each in expected]
        with pytest.raises(InferenceServerException) as error:
            connection.infer("pairs", [texts(*ones)])
        assert "expected 2 inputs but got 1 inputs for model 'pairs'" in refused(error.value, 400)
        with pytest.raises(InferenceServerException, match="the same batch size"):
            connection.infer("pairs", [texts(*ones), texts("a", name="pair")])


@pytest.mark.parametrize("model", ["tagger", "motion"])
def test_tags_and_spans_are_tensors(tasks: httpx.Client, model: str) -> None:
    rows = np.array([[np.sin(i * j + 1) for j in range(8)] for i in range(30)], np.float32)
    body: dict[str, Any] = {"features": rows.tolist()} if model == "motion" else {"input": TEXTS[2]}
    (expected,) = v1(tasks, "tag", model=model, **body)
    inputs = [tensor("features", rows) if model == "motion" else texts(TEXTS[2], batch=False)]
    with connected(tasks) as connection:
        result = connection.infer(model, inputs)
    assert expected["spans"]
    assert values_of(result, "labels") == [each["label"] for each in expected["tokens"]]
    assert values_of(result, "scores") == [each["score"] for each in expected["tokens"]]
    if model == "tagger":
        assert values_of(result, "starts") == [each["start"] for each in expected["tokens"]]
        assert values_of(result, "ends") == [each["end"] for each in expected["tokens"]]
    else:
        assert result.as_numpy("starts") is None
    for name, key in (("labels", "label"), ("starts", "start"), ("ends", "end"),
                      ("scores", "score"), ("continued", "continued")):  # fmt: skip
        assert values_of(result, f"span_{name}") == [each[key] for each in expected["spans"]]


def test_encoders_give_their_outputs(tasks: httpx.Client) -> None:
    rows = np.array(
        [[0.3 * ((i * 7 + j) % 5) - 0.5 for j in range(8)] for i in range(100)], np.float32
    )
    (expected,) = v1(tasks, "encode", model="encoder", features=rows.tolist())
    with connected(tasks) as connection:
        for packing in (None, "gzip"):
            result = connection.infer(
                "encoder", [tensor("features", rows)], response_compression_algorithm=packing
            )
            assert result.as_numpy("outputs").tolist() == expected["outputs"]
        result = connection.infer("reader", [texts("How far", batch=False)])
    assert (
        result.as_numpy("outputs").tolist()
        == v1(tasks, "encode", model="reader", input="How far")[0]["outputs"]
    )


def test_generators_complete_prompts(client: httpx.Client) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "seed": 5, "temperature": 0.8, "stop": "e"}
    prompts = ["How far", "is it"]
    expected = v1(client, "completions", model="characters", prompt=prompts, **options)
    with connected(client) as connection:
        result = connection.infer(
            "characters", [texts(*prompts, name="text_input")], parameters=options
        )
        assert values_of(result, "text_output") == [each["text"] for each in expected]
        assert values_of(result, "finish_reason") == [each["finish_reason"] for each in expected]
        ids = connection.infer(
            "ids",
            [tensor("input_ids", [1, 2, 3], "INT64")],
            parameters={"max_tokens": 5, "seed": 1},
        )
    (same,) = v1(client, "completions", model="ids", prompt=[1, 2, 3], max_tokens=5, seed=1)
    assert values_of(ids, "output_ids") == same["token_ids"]


def test_a_state_token_continues_a_text(client: httpx.Client) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "seed": 5}
    begin = texts("How far", name="text_input")
    with connected(client) as connection:
        whole = connection.infer("characters", [begin], parameters={**options, "max_tokens": 24})
        first = connection.infer(
            "characters", [begin], parameters={**options, "sru_return_state": True}
        )
        state = first.get_response()["parameters"]["sru_state"]
        second = connection.infer(
            "characters",
            [texts("", name="text_input")],
            parameters={"max_tokens": 12, "sru_state": state},
        )
        parts = values_of(first, "text_output") + values_of(second, "text_output")
        assert "".join(parts) == values_of(whole, "text_output")[0]
        with pytest.raises(InferenceServerException) as error:
            connection.infer("other", [begin], parameters={"sru_state": state})
        assert "another model" in refused(error.value, 400)


def test_the_highest_classes_are_reported_as_text(client: httpx.Client) -> None:
    output = triton.InferRequestedOutput("scores", class_count=2)
    with connected(client) as connection:
        result = connection.infer("question", [texts(*TEXTS)], outputs=[output])
    assert result.as_numpy("scores").shape == (3, 2)
    best = [entry.decode().split(":") for entry in result.as_numpy("scores")[:, 0]]
    expected = v1(client, "classify", model="question", input=TEXTS)
    assert [label for _, _, label in best] == [each["label"] for each in expected]
    assert [np.float32(value) for value, _, _ in best] == [each["score"] for each in expected]
    assert [LABELS[int(index)] for _, index, _ in best] == [each["label"] for each in expected]


def test_errors_are_triton_s(client: httpx.Client) -> None:
    cases: list[tuple[str, list[Any], dict[str, Any], int, str]] = [
        ("nobody", [texts("a")], {}, 404, "Request for unknown model: 'nobody' is not found"),
        ("question", [texts("a")], {"model_version": "3"}, 404,
         "Request for unknown model: 'question' version 3 is not found"),
        ("question", [texts("a", name="TEXT")], {}, 400,
         "unexpected inference input 'TEXT' for model 'question'"),
        ("question", [tensor("text", [[1.0]])], {}, 400,
         "inference input 'text' data-type is 'FP32', but model 'question' expects 'BYTES'"),
        ("question", [texts("a", batch=False)], {}, 400,
         "unexpected shape for input 'text' for model 'question'. Expected [-1,1], got [1]"),
        ("question", [texts(*["a"] * 1025)], {}, 400,
         "inference request batch-size must be <= 1024 for 'question'"),
        ("question", [texts("a")], {"outputs": [triton.InferRequestedOutput("logits")]}, 400,
         "unexpected inference output 'logits' for model 'question': request some of"),
        ("question", [texts("a")], {"parameters": {"temperature": 1.0}}, 400,
         "unknown parameter 'temperature'"),
        ("question", [texts("a")], {"priority": 101}, 400, "'priority' must be from 1"),
        ("question", [texts(" ")], {}, 400, "has nothing to read"),
        ("characters", [texts("a", name="text_input")], {"parameters": {"top_p": 2.0}}, 400,
         "'top_p'"),
    ]  # fmt: skip
    with connected(client) as connection:
        for model, inputs, options, status, message in cases:
            with pytest.raises(InferenceServerException) as error:
                connection.infer(model, inputs, **options)
            assert message in refused(error.value, status)
        result = connection.infer("question", [texts("who")], priority=1, timeout=600_000_000)
        assert values_of(result, "label")
