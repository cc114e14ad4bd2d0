"""What `sruserve.save` refuses: the operation and its line of source, and no folder is written."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

import sruserve
from sruserve.tracing.errors import TracingError
from tests.tracing.refusals import REFUSALS


@pytest.mark.parametrize("name", REFUSALS)
def test_a_network_that_cannot_be_served_is_refused_by_name(name: str, tmp_path: Path) -> None:
    refusal = REFUSALS[name]
    torch.manual_seed(0)
    folder = tmp_path / "model"
    with pytest.raises(TracingError) as caught:
        sruserve.save(refusal.build(), folder, cast("Any", refusal.task), **refusal.options)
    assert refusal.says in str(caught.value)
    place = caught.value.place
    assert (place is None) is (refusal.line is None)
    if place is not None and refusal.line is not None:
        assert place.file.endswith(("refusals.py", "steps.py"))
        assert refusal.line in place.text
        assert f"line {place.line}: {place.text}" in str(caught.value)
    assert not folder.exists()
