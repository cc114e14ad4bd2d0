"""Lines with classes that are made together are those that are made one by one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sruserve.api.local_model import LocalModel
from sruserve.batch import answers as batch_answers
from sruserve.batch.class_lines import ClassLines
from sruserve.server.json_output import json_bytes
from tests.batch.runs import jsonl, run

SCORES = st.floats(width=32, allow_nan=False)


def one_by_one(labels: list[str], line: int, row: Any) -> bytes:
    scores = row.tolist()
    best = scores.index(max(scores))
    fields = {"line": line, "label": labels[best], "score": scores[best]}
    return json_bytes({**fields, "scores": dict(zip(labels, scores, strict=True))}) + b"\n"


@given(
    labels=st.lists(st.text() | st.sampled_from(["%", "%d", '"', "\\", "],["]), unique=True)
    .filter(bool),
    count=st.integers(1, 5),
    data=st.data(),
)  # fmt: skip
def test_any_labels_and_scores_are_written_alike(
    labels: list[str], count: int, data: st.DataObject
) -> None:
    rows = data.draw(arrays(np.float32, (count, len(labels)), elements=SCORES))
    numbers = range(7, 7 + count)
    written = ClassLines(labels).write(numbers, rows)
    expected = [one_by_one(labels, line, row) for line, row in zip(numbers, rows, strict=True)]
    assert written == b"".join(expected)


def test_a_run_writes_the_same_bytes_with_and_without_it(
    local: Callable[[str], LocalModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {"raw_scores": True}
    content = jsonl(
        *("who", "what", [1, 2], {"input": "who", **raw}, {"input": ["who", "what"]}),
        *({"input": "who", "id": 3}, {"input": "who", "return_state": False}),
    )
    run(local("question"), content, tmp_path / "together")
    monkeypatch.setattr(batch_answers, "are_bare", lambda _: False)
    run(local("question"), content, tmp_path / "alone")
    together, alone = ((tmp_path / name).read_bytes() for name in ("together", "alone"))
    assert together == alone
    assert [json.loads(line)["line"] for line in together.splitlines()] == [*range(1, 8)]
