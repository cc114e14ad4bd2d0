"""The longest requests of all routes: each is one that once held up an event loop for seconds."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Punctuation, Sequence, WhitespaceSplit

from sruserve.server.json_limits import MAX_JSON_CONTAINERS, MAX_JSON_VALUES
from tests.support import save_random_model

_CHARACTERS = [10, *range(32, 127), *range(0x80, 0xC0), *range(0xC2, 0xF5)]  # all of UTF-8
_LABELS = ("O", "B-PLACE", "I-PLACE")


def save_models(folder: Path) -> list[Path]:
    """Save a small random model for each task and kind of input; returns their folders."""
    splits = Sequence([WhitespaceSplit(), Punctuation()])
    marks = Tokenizer(WordLevel({"<oov>": 0, ":": 1}, unk_token="<oov>"))
    marks.pre_tokenizer = splits
    text: dict[str, Any] = {"vocabulary": marks.to_str().encode(), "vocab_size": 2}
    characters: dict[str, Any] = {"vocabulary": _CHARACTERS}
    features: dict[str, Any] = {"input_size": 8}
    return [
        save_random_model(folder / "marks", "classify", labels=("a", "b"), **text),
        save_random_model(folder / "sensor", "classify", labels=("a", "b"), **features),
        save_random_model(folder / "characters", **characters),
        save_random_model(folder / "words", **text),
        save_random_model(folder / "ids", vocab_size=50),
        save_random_model(folder / "letters", "tag", labels=_LABELS, **characters),
        save_random_model(folder / "tagger", "tag", labels=_LABELS, **text),
        save_random_model(folder / "encoder", "encode", **features),
        save_random_model(folder / "pairs", "pair", labels=("same", "other"), **text),
    ]


def words(characters: int) -> str:
    """Different words, none of which was seen before."""
    random = Random()
    texts: list[str] = []
    while sum(map(len, texts)) < characters:
        texts += [random.randbytes(4).hex() + " " for _ in range(1000)]
    return "".join(texts)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


COLONS, ROWS = ":" * 400_000, [[0.123456789] * 8] * (MAX_JSON_VALUES // 8 - 9)
ECHO = {
    "model": "characters",
    "prompt": words(8000),
    "echo": True,
    "logprobs": 5,
    "max_tokens": 1,
}
MESSAGE = {"role": "user", "content": "a b c"}
LONG: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a word without end": ("/v1/classify", lambda: body(model="marks", input=COLONS)),
    "words": ("/v1/classify", lambda: body(model="marks", input=words(300_000))),
    "short words on the loop": ("/v1/classify", lambda: body(model="marks", input=words(8000))),
    "many texts": (
        "/v1/classify", lambda: body(model="marks", input=[words(300)[:300]] * 1000)
    ),
    "pairs": (
        "/v1/classify",
        lambda: body(model="pairs", input=["a b"] * 500, pair=[words(200)[:200]] * 500),
    ),
    "features": ("/v1/classify", lambda: body(model="sensor", features=ROWS)),
    "ids": ("/v1/score", lambda: body(model="ids", input=[7] * (MAX_JSON_VALUES - 1))),
    "lists": ("/v1/score", lambda: body(model="ids", input=[[1, 2]] * (MAX_JSON_CONTAINERS - 2))),
    "brackets": ("/v1/score", lambda: b'{"model":"ids","input":[' + b"[]," * 2_700_000 + b"[]]}"),
    "escapes": ("/v1/score", lambda: b'{"model":"characters","input":"' + rb"\u20ac," * 1_100_000),
    "quotes": ("/v1/score", lambda: b'{"model":"characters","input":"' + rb'\"\\[,' * 1_300_000),
    "labels of letters": ("/v1/tag", lambda: body(model="letters", input=words(60_000))),
    "labels of words": ("/v1/tag", lambda: body(model="tagger", input=words(100_000))),
    "outputs": ("/v1/encode", lambda: body(model="encoder", features=ROWS)),
    "log-probabilities": ("/v1/completions", lambda: body(**ECHO)),
    "events of log-probabilities": ("/v1/completions", lambda: body(**ECHO, stream=True)),
    "responses": (
        "/v1/responses",
        lambda: body(model="characters", input=words(300_000), max_output_tokens=1),
    ),
    "messages": (
        "/v1/responses",
        lambda: body(model="characters", input=[MESSAGE] * 1024, max_output_tokens=1),
    ),
    "too many messages": (
        "/v1/responses",
        lambda: body(model="characters", input=[MESSAGE] * (MAX_JSON_CONTAINERS // 2)),
    ),
    "vectors": ("/v1/embeddings", lambda: body(model="encoder", features=ROWS)),
    "many vectors": (
        "/v1/embeddings", lambda: body(model="encoder", features=[[[0.5] * 8]] * 1000)
    ),
    "tokens": ("/tokenize", lambda: body(model="marks", prompt=words(100_000))),
    "texts of tokens": (
        "/tokenize",
        lambda: body(model="characters", prompt=words(100_000), return_token_strs=True),
    ),
    "a text of ids": (
        "/detokenize", lambda: body(model="characters", tokens=[7] * (MAX_JSON_VALUES - 3))
    ),
    "predict": ("/predict?model=marks", lambda: body(inputs=[words(300)[:300]] * 1000)),
    "predict, cut": (
        "/predict?model=marks", lambda: body(inputs=COLONS, truncate=True)
    ),
    "numbers for KServe": (
        "/v2/models/encoder/infer",
        lambda: body(
            inputs=[{"name": "features", "shape": [len(ROWS), 8], "datatype": "FP32", "data": ROWS}]
        ),
    ),
}  # fmt: skip

# Statuses of those that are not answered with 200.
REFUSED = {"too many messages": 422, "brackets": 422, "lists": 422, "escapes": 400, "quotes": 400}
