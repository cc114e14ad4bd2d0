"""What `sruserve.load` returns answers as a server of the same folder does, bit for bit."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sruserve
from sruserve.api.inputs import MAX_INPUTS, Inputs
from sruserve.api.model import Model
from sruserve.model.heads.regression import Regression
from sruserve.server.errors import InvalidRequest, ModelClosed, ModelNotFound, WrongTask
from tests.server.conftest import TAGS, TEXT, Serve
from tests.support import save_random_model

Load = Callable[..., Model]
TEXTS = [TEXT, "who", "what where when", "a b c a b c"]


@pytest.fixture(scope="module")
def more_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger, an encoder, a regressor of features, and a model of pairs."""
    parent = tmp_path_factory.mktemp("more")
    letters = list(range(32, 127))
    save_random_model(parent / "tagger", "tag", labels=TAGS, vocabulary=letters)
    save_random_model(parent / "encoder", "encode", vocabulary=letters)
    save_random_model(parent / "pairs", "pair", labels=("yes", "no"), vocabulary=letters)
    save_random_model(
        parent / "load",
        "regress",
        input_size=2,
        regression=Regression(names=("heat", "power"), forecasts=True),
    )
    return parent


def plain(result: Any) -> dict[str, Any]:
    """The fields of a result as a reply in JSON has them."""
    fields = asdict(result)
    return {k: list(value) if isinstance(value, tuple) else value for k, value in fields.items()}


def without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nones(each) for name, each in value.items() if each is not None}
    return [without_nones(each) for each in value] if isinstance(value, list) else value


def test_a_text_has_one_result_and_a_list_has_a_list_as_the_server_gives(
    load: Load, serve: Serve
) -> None:
    model = load("question")
    one, several = model.classify(TEXT), model.classify(TEXTS)
    with serve("question") as (client, _):
        replies = client.post("/v1/classify", json={"input": TEXTS}).json()["results"]
    assert [plain(each) for each in several] == replies
    assert one == several[0]
    none: list[str] = []
    assert not model.classify(none)


def test_each_task_has_the_server_s_results(load: Load, serve: Serve, more_folders: Path) -> None:
    features = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    text = "Ada Lovelace lived in London"
    cases: list[tuple[str, str, Any, dict[str, Any]]] = [
        ("tagger", "tag", text, {"input": text}),
        ("encoder", "encode", text, {"input": text}),
        ("load", "regress", features, {"features": features.tolist()}),
    ]
    with serve(*(more_folders / each[0] for each in cases)) as (client, _):
        for name, task, value, body in cases:
            model = load(more_folders / name)
            result = plain(getattr(model, task)(value))
            if task == "encode":
                result["outputs"] = result["outputs"].tolist()
            (reply,) = client.post(f"/v1/{task}", json=body).json()["results"]
            assert without_nones(result) == without_nones(reply), name


def test_options_of_a_task_are_the_server_s(load: Load, serve: Serve, more_folders: Path) -> None:
    features = np.random.default_rng(0).standard_normal((3, 5, 2)).astype(np.float32)
    folders = [more_folders / "pairs", more_folders / "load"]
    with serve(*folders) as (client, _):
        body: dict[str, Any] = {"input": ["a b", "c"], "pair": ["d", "e f"], "raw_scores": True}
        replies = client.post("/v1/classify", json=body).json()["results"]
        results = load(folders[0]).classify(["a b", "c"], pair=["d", "e f"], raw_scores=True)
        assert [plain(each) for each in results] == replies
        body = {"features": features.tolist(), "steps_ahead": 4}
        replies = client.post("/v1/regress", json=body).json()["results"]
        ahead = load(folders[1]).regress(list(features), steps_ahead=4)
        assert without_nones([plain(each) for each in ahead]) == without_nones(replies)


def test_features_may_be_a_tensor_or_lists(load: Load, more_folders: Path) -> None:
    model, features = load(more_folders / "load"), torch.linspace(-1, 1, 10).view(5, 2)
    result = model.regress(features.numpy())
    assert model.regress(features) == result
    assert model.regress(features.tolist()) == result
    assert model.regress([features, features]) == [result, result]
    with pytest.raises(InvalidRequest, match="equally long"):
        model.regress([[0.1, 0.2], [0.3]])


def test_a_score_is_the_server_s(load: Load, serve: Serve) -> None:
    model = load("characters")
    with serve("characters") as (client, _):
        (reply,) = client.post("/v1/score", json={"input": TEXT}).json()["results"]
    assert plain(model.score(TEXT)) == reply


def test_vectors_are_the_server_s(load: Load, serve: Serve, more_folders: Path) -> None:
    for folder, texts in ((Path("question"), TEXTS), (more_folders / "encoder", ["abc", "d"])):
        model = load(folder)
        with serve(folder) as (client, _):
            reply = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
        vectors = model.embed(texts)
        assert vectors.tolist() == [each["embedding"] for each in reply]
        assert vectors.dtype == np.float32
        assert (model.embed(texts[0]) == vectors[0]).all()
        none: list[str] = []
        assert model.embed(none).shape == (0, vectors.shape[1])
        assert (asyncio.run(model.aio.embed(texts)) == vectors).all()
    with pytest.raises(WrongTask):
        load("characters").embed("abc")


def test_more_inputs_than_a_piece_are_answered_in_their_order(load: Load) -> None:
    model = load("question")
    texts = [TEXTS[i * i % 4] + " a" * (i % 7) for i in range(3 * MAX_INPUTS + 5)]
    assert model.classify(texts) == [model.classify(text) for text in texts]


def test_a_thousand_texts_take_few_steps(load: Load) -> None:
    model = load("question")
    engine = model._local.served.engine
    before = engine.turns
    for text in TEXTS:
        model.classify(text)
    alone = engine.turns - before
    model.classify([TEXT] * 1000)
    assert engine.turns - before - alone < 100
    assert alone >= len(TEXTS)


def test_pieces_have_bounded_sizes_and_keep_what_belongs_together() -> None:
    texts = ["a" * (i % 90) for i in range(1000)]
    states = [f"state {i}" for i in range(1000)]
    pieces = list(Inputs(texts, pair=texts[::-1], state=states).pieces(3000))
    assert all(len(piece["input"]) <= MAX_INPUTS for piece in pieces)
    assert all(sum(map(len, piece["input"])) <= 3000 for piece in pieces)
    for field, values in (("input", texts), ("pair", texts[::-1]), ("state", states)):
        assert [each for piece in pieces for each in piece[field]] == values
    (long,) = Inputs(["a" * 9000]).pieces(3000)
    assert len(long["input"][0]) == 9000


def test_sixteen_threads_get_what_one_gets(load: Load) -> None:
    model = load("question")
    texts = [TEXTS[i % 4] + " b" * (i % 5) for i in range(320)]
    alone = [model.classify(text) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(model.classify, texts)) == alone


def test_sixteen_event_loops_get_what_one_thread_gets(load: Load) -> None:
    model = load("question")

    def ask(text: str) -> Any:
        return asyncio.run(model.aio.classify([text] * 3))

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, TEXTS * 4))
    assert answers == [[model.classify(text)] * 3 for text in TEXTS * 4]


def test_awaitable_methods_return_the_same(load: Load, more_folders: Path) -> None:
    question, letters = load("question"), load("characters")
    tagger, encoder = load(more_folders / "tagger"), load(more_folders / "encoder")
    load_ = load(more_folders / "load")
    features = np.ones((4, 2), np.float32)

    async def ask() -> list[Any]:
        return [
            await question.aio.classify(TEXTS),
            await letters.aio.score(TEXT),
            await tagger.aio.tag(TEXT),
            (await encoder.aio.encode(TEXT)).outputs.tolist(),
            await load_.aio.regress(features, steps_ahead=2),
        ]

    assert asyncio.run(ask()) == [
        question.classify(TEXTS),
        letters.score(TEXT),
        tagger.tag(TEXT),
        encoder.encode(TEXT).outputs.tolist(),
        load_.regress(features, steps_ahead=2),
    ]


def test_token_ids_and_arrays_of_them_are_inputs(load: Load) -> None:
    model = load("ids")
    ids = [3, 1, 4, 1, 5]
    assert model.score(ids) == model.score(np.array(ids)) == model.score([ids, ids])[1]


def test_an_input_of_another_type_is_refused_by_name(load: Load) -> None:
    wrong: Any
    for wrong, kind in ((7, "int"), ([1.0], "float"), (np.ones(2), "ndarray"), (np.array(1), "nd")):
        with pytest.raises(InvalidRequest, match=f"this is of type {kind}"):
            load("question").classify(wrong)
    for ask in (load("ids").score, load("ids").generate):
        with pytest.raises(InvalidRequest, match="no features"):
            ask(np.ones((2, 3)))
    with pytest.raises(InvalidRequest, match="give one for each"):
        load("question").classify(["a", "b"], state=[None])


def test_half_of_a_surrogate_pair_is_refused_by_name(load: Load) -> None:
    question, characters = load("question"), load("characters")
    asks: list[tuple[str, Callable[[str], Any]]] = [
        ("input", lambda half: question.classify(half, more=True, return_state=True)),
        ("input", lambda half: question.classify(["who", half])),
        ("input", lambda half: question.stream().send(half, more=True)),
        ("prompt", lambda half: characters.generate(half)),
        ("stop", lambda half: characters.generate("a", stop=[half])),
    ]
    for field, ask in asks:
        with pytest.raises(InvalidRequest, match=rf"'{field}' has .*ud83d', one half"):
            ask("who \ud83d")


def test_a_method_of_another_task_names_the_right_one(load: Load) -> None:
    with pytest.raises(WrongTask, match=r"is a model for 'classify': call model\.classify"):
        load("question").tag(TEXT)
    with pytest.raises(WrongTask, match=r"call model\.classify"):
        load("question").generate(TEXT)
    with pytest.raises(WrongTask, match=r"call model\.generate or model\.score"):
        load("characters").classify(TEXT)


def test_the_first_error_of_many_inputs_is_raised_as_itself(load: Load) -> None:
    model = load("characters")
    with pytest.raises(sruserve.ServeError) as caught:
        model.score([TEXT] * (2 * MAX_INPUTS) + ["\x01"])
    assert caught.value.code == "invalid_text"
    assert model.score(TEXT).tokens > 0


def test_a_model_says_what_it_is(load: Load) -> None:
    text = repr(load("question"))
    for part in ("'question'", "classify", "sru", "2 layers x 24", "6 labels", "float32 on cpu"):
        assert part in text
    assert load("question").digest[:12] in text


def test_results_are_frozen_and_short_to_read(load: Load) -> None:
    result = load("question").classify(TEXT, return_state=True)
    with pytest.raises(FrozenInstanceError):
        result.label = "other"  # type: ignore[misc]
    assert result.state is not None
    assert result.state not in repr(result)
    assert "…" in repr(result)


def test_a_closed_model_refuses_with_a_code(load: Load, folders: Path) -> None:
    with sruserve.load(folders / "question", device="cpu") as model:
        stream = model.stream()
        model.classify(TEXT)
    for call in (
        lambda: model.classify(TEXT),
        model.stream,
        lambda: stream.send(TEXT),
        lambda: asyncio.run(model.aio.classify(TEXT)),
    ):
        with pytest.raises(ModelClosed) as caught:
            call()
        assert caught.value.code == "model_closed"
    model.close()
    assert "closed" in repr(model)


def test_a_dropped_model_ends_its_engine(folders: Path) -> None:
    model = sruserve.load(folders / "question", device="cpu")
    stream = model.stream()
    engine = model._local.served.engine
    local = weakref.ref(model._local)
    del model
    gc.collect()
    assert stream.send(TEXT) is not None  # the stream still needs it
    del stream
    gc.collect()
    assert local() is None
    engine._thread.join(30)
    assert engine.ended


def test_an_unknown_name_lists_the_bundled_models() -> None:
    with pytest.raises(ModelNotFound, match=r"'nothing' is no model folder.*shakespeare"):
        sruserve.load("nothing")


def test_cancelling_an_awaited_call_withdraws_its_work(load: Load) -> None:
    model = load("question")
    served = model._local.served

    async def leave() -> None:
        task = asyncio.create_task(model.aio.classify([TEXT] * 20_000))
        while served.in_flight.idle:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not served.in_flight.idle or served.engine.rows or served.engine.running:
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert model.classify(TEXT).label is not None
