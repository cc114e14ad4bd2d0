"""The catalogue of served models is a mapping like any other."""

from types import SimpleNamespace
from typing import Any

import pytest

from sruserve.server.app import Application
from sruserve.server.errors import InvalidRequest, ModelNotFound
from sruserve.server.repository.catalogue import Catalogue


def test_a_model_that_is_not_there_is_not_in_it_and_can_be_asked_for(
    application: Application,
) -> None:
    catalogue = application.lifecycle.catalogue
    assert "question" in catalogue
    assert catalogue.get("question") is catalogue["question"]
    assert "absent" not in catalogue
    assert catalogue.get("absent") is None


def test_asking_for_one_that_is_not_there_tells_which_there_are() -> None:
    with pytest.raises(ModelNotFound) as caught:
        Catalogue()["absent"]
    assert str(caught.value) == "there is no model 'absent'; served here: none"


def test_an_error_names_only_some_of_many_models() -> None:
    names = [f"{number:0200}" for number in range(100)]
    many: Any = [
        SimpleNamespace(name=name, version="1", id=f"{name}@1", task="classify") for name in names
    ]
    tagger: Any = SimpleNamespace(name="tagger", version="1", id="tagger@1", task="tag")
    catalogue = Catalogue([*many, tagger])
    for model in ("absent", "tagger", None):
        with pytest.raises(InvalidRequest) as caught:
            catalogue.choose(model, "classify")
        assert f"{names[19]}, …" in caught.value.message
        assert names[20] not in caught.value.message


def test_a_request_without_a_model_gets_one_that_is_served_now(application: Application) -> None:
    served = application.lifecycle.catalogue
    question, whole = served["question"], served["whole"]
    catalogue = Catalogue([question])
    assert catalogue.choose(None, "classify") is question
    catalogue.put(whole)
    with pytest.raises(InvalidRequest, match="question, whole"):
        catalogue.choose(None, "classify")
    catalogue.drop(question)
    assert catalogue.choose(None, "classify") is whole
