"""A tokenizer.json that never ends, or takes all memory, is refused before it is loaded here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sruserve.model.errors import FolderError
from sruserve.model.text import tokenizer_trial
from sruserve.model.text.tokenizer_trial import check_tokenizer, is_plain
from tests.server.conftest import WORDS, words_vocabulary
from tests.support import save_random_model

ENDLESS = {"type": "Replace", "pattern": {"Regex": "(?:a|a)+(?!)"}, "content": "x"}


def added(number: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"id": number, "content": content, "normalized": True, **flags}


def tokenizer(normalizer: dict[str, Any] | None, *contents: str) -> bytes:
    described = json.loads(words_vocabulary())
    described["normalizer"] = normalizer
    described["added_tokens"] = [added(len(WORDS) + i, text) for i, text in enumerate(contents)]
    return json.dumps(described).encode()


def test_a_token_that_takes_hours_to_load_is_refused_in_seconds() -> None:
    content = tokenizer(ENDLESS, ("a" * 20 + "b") * 1000)
    with pytest.raises(FolderError, match="takes more than 1 seconds or"):
        check_tokenizer(content, "here/tokenizer.json", seconds=1)


def test_a_small_file_that_takes_long_to_load_is_refused() -> None:
    content = tokenizer({"type": "Lowercase"}, "<sep>")
    with pytest.raises(FolderError, match=r"^here/tokenizer\.json .* takes .* the limit is -1\.0"):
        check_tokenizer(content, "here/tokenizer.json", load_seconds=-1.0)


def test_a_tokenizer_that_takes_all_memory_is_refused() -> None:
    content = tokenizer({"type": "Lowercase"}, "<sep>")
    with pytest.raises(FolderError, match="or 64 MiB of memory"):
        check_tokenizer(content, "here/tokenizer.json", memory_bytes=64 << 20)


def test_a_lower_limit_that_the_process_has_inherited_stays(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer({"type": "Lowercase"}, "<sep>"))
    shell = 'ulimit -v 4000000 && exec "$0" -m "$@" < tokenizer.json'
    command = [sys.executable, tokenizer_trial.__name__, "15", str(8 << 30), "2.0"]
    trial = subprocess.run(["sh", "-c", shell, *command], cwd=tmp_path, capture_output=True)
    assert (trial.returncode, trial.stderr) == (0, b"")


def test_only_a_tokenizer_that_has_passed_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = []
    run = subprocess.run

    def counted(*arguments: Any, **options: Any) -> Any:
        trials.append(arguments)
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    good = tokenizer({"type": "Lowercase"}, "<passes>")
    bad = tokenizer({"type": "Replace", "pattern": {"String": "#"}, "content": ""}, "#")
    for _ in range(2):
        check_tokenizer(good, "tokenizer.json")
        with pytest.raises(FolderError, match="delete the added token"):
            check_tokenizer(bad, "tokenizer.json")
    assert len(trials) == 3
    check_tokenizer(good, "tokenizer.json", seconds=14)  # a tighter limit
    assert len(trials) == 4


@pytest.mark.parametrize(
    ("normalizer", "token"),
    [
        ({"type": "StripAccents"}, "\u0301"),
        ({"type": "Strip", "strip_left": True, "strip_right": True}, "\u3000"),
        ({"type": "Nmt"}, "\u0001"),
        ({"type": "Replace", "pattern": {"String": "#"}, "content": ""}, "#"),
    ],
    ids=str,
)
def test_an_added_token_that_its_normalizers_delete_is_named(
    normalizer: dict[str, Any], token: str, tmp_path: Path
) -> None:
    content = tokenizer(normalizer, token, "<sep>")
    with pytest.raises(FolderError, match="delete the added token"):
        check_tokenizer(content, "tokenizer.json")
    with pytest.raises(FolderError, match=f"{tmp_path}.*delete the added token"):
        save_random_model(tmp_path / "model", vocabulary=content, vocab_size=len(WORDS) + 2)


def test_added_tokens_that_normalizers_make_the_same_are_named() -> None:
    content = tokenizer({"type": "Lowercase"}, "<Sep>", "<sep>")
    with pytest.raises(FolderError, match="make the added tokens '<Sep>' and '<sep>' the same"):
        check_tokenizer(content, "tokenizer.json")


def test_a_refusal_names_the_file() -> None:
    content = tokenizer({"type": "Prepend", "prepend": "x" * 2000})
    with pytest.raises(FolderError, match=r"^here/tokenizer\.json is not a usable"):
        check_tokenizer(content, "here/tokenizer.json")


def test_usable_tokenizers_pass_and_plain_ones_take_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_tokenizer(tokenizer({"type": "Lowercase"}, "<sep>"), "tokenizer.json")
    plain = words_vocabulary()
    assert is_plain(plain)
    assert not is_plain(tokenizer(None, "<sep>"))
    for part in ("decoder", "post_processor"):
        described = {**json.loads(plain), part: {"type": "ByteLevel"}}
        assert not is_plain(json.dumps(described).encode())
    assert not is_plain(plain + b" " * (1 << 20))
    monkeypatch.setattr(tokenizer_trial, "subprocess", None)
    check_tokenizer(plain, "tokenizer.json")
