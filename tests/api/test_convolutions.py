"""A convolutional classifier in this process: inputs, streams and forks of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sruserve.api.model import Model
from tests.server.conftest import LABELS, TEXT, WORDS, words_vocabulary
from tests.support import save_random_model


def test_a_stream_and_its_continuations_give_the_results_of_the_whole(
    load: Callable[..., Model], tmp_path: Path
) -> None:
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    save_random_model(tmp_path / "cnn", "classify", model_type="cnn", labels=LABELS, **words)
    model = load(tmp_path / "cnn")
    stream = model.stream()
    stream.send(TEXT[:20], more=True)
    fork = model.stream(state=stream.state)
    assert stream.send(TEXT[20:]) == model.classify(TEXT)
    assert fork.send(" who") == model.classify(f"{TEXT[:20]} who")
    assert model.classify([TEXT, "who", "a b"])[1] == model.classify("who")
