"""`Model.answer` gives what a server of the same folder gives, in one call or many pieces."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sruserve.api.answering import answer
from sruserve.api.local_model import LocalModel
from sruserve.api.model import Model
from sruserve.server.errors import InvalidRequest, WrongTask
from tests.readers import save_reader
from tests.server.conftest import Serve

Load = Callable[..., Model]
CONTEXT = "Ada lives in Lisbon. Ben lives in Porto."
QUESTIONS = ["Where does Ada live?", "Who lives in Porto?", "Ben", "in Lisbon?", "Who?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reader(tmp_path_factory.mktemp("readers") / "reader")


@pytest.fixture(scope="module")
def lemmas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features = ("in_question_lemma", "pos=NN")
    return save_reader(tmp_path_factory.mktemp("readers") / "lemmas", features=features)


def plain(result: Any) -> list[dict[str, Any]]:
    return list(asdict(result)["answers"])


def test_answers_are_those_of_the_server(load: Load, serve: Serve, folder: Path) -> None:
    model = load(folder)
    with serve(model_folders=(folder,)) as (client, _):
        body = {"question": QUESTIONS, "context": CONTEXT, "n_best": 3}
        expected = [
            each["answers"] for each in client.post("/v1/answer", json=body).json()["results"]
        ]
    several = model.answer(QUESTIONS, CONTEXT, n_best=3)
    assert [plain(each) for each in several] == expected
    assert model.answer(QUESTIONS[0], CONTEXT, n_best=3) == several[0]
    assert several[0].best == model.answer(QUESTIONS[0], CONTEXT).best == several[0].answers[0]
    assert asyncio.run(model.aio.answer(QUESTIONS, CONTEXT, n_best=3)) == several
    words = [CONTEXT.replace(".", " .").split()]
    (best,) = model.answer([["Who", "?"]], words)
    assert best.best.text == " ".join(words[0][best.best.start : best.best.end])


def test_many_questions_go_in_pieces_with_their_contexts(
    local: Callable[[str], LocalModel], load: Load, folder: Path
) -> None:
    model, own = load(folder), local(str(folder))

    def in_pieces(questions: list[str], context: Any) -> Any:
        return own.loop.run(answer(own, questions, context, 2))

    contexts = [CONTEXT[i:] for i in range(len(QUESTIONS))]
    whole = model.answer(QUESTIONS, contexts)
    assert whole == [model.answer(*pair) for pair in zip(QUESTIONS, contexts, strict=True)]
    assert in_pieces(QUESTIONS, contexts) == whole
    assert in_pieces(QUESTIONS, CONTEXT) == model.answer(QUESTIONS, CONTEXT)
    assert in_pieces([], CONTEXT) == []


def test_features_are_those_of_each_question(load: Load, lemmas: Path) -> None:
    model = load(lemmas)
    words, questions = [["Ada", "lives"]], [["live"], ["Ada"]]
    of_words = {"lemmas": ["Ada", "live"], "pos": ["NN", "VB"]}
    features = [of_words | {"question_lemmas": question} for question in questions]
    both = model.answer(questions, words, features=features)
    alone = [
        model.answer([question], words, features=own)[0]
        for question, own in zip(questions, features, strict=True)
    ]
    assert both == alone
    with pytest.raises(InvalidRequest, match="3 entries for 2 questions"):
        model.answer(questions, words, features=[features[0]] * 3)
    with pytest.raises(InvalidRequest, match="needs 'features' with 'lemmas' and 'pos' and"):
        model.answer(questions, words)


def test_a_reader_has_this_method_alone(load: Load, folder: Path) -> None:
    with pytest.raises(WrongTask, match=r"call model\.answer"):
        load(folder).classify("a")
    with pytest.raises(WrongTask, match=r"call model\.classify"):
        load("question").answer("a", "b")
