"""States as plain values: what an operator may open, and nothing that was changed."""

from pathlib import Path

import numpy as np
import pytest

from sruserve.model.folder import Model, load_model
from sruserve.model.heads.config import HeadConfig
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    StateExpired,
    StateRefused,
    StateTampered,
    StateUnknownKey,
    StateWrongModel,
)
from sruserve.server.key_ring import KeyRing
from sruserve.server.state.plain import open_for_operator, plain_state
from sruserve.server.state.token import Binding, StateSealer
from tests.support import save_random_model

KEY = b"o" * 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(save_random_model(tmp_path_factory.mktemp("plain") / "m", vocab_size=9))


def sealer(key: bytes = KEY, now: float = 1000.0) -> StateSealer:
    return StateSealer(KeyRing([key]), 60, 1 << 20, clock=lambda: now)


def snapshot(model: Model) -> Snapshot:
    row = np.linspace(-1, 1, model.network.layout.width, dtype=np.float32)
    return Snapshot(row, 5, 3, 2**64 - 1, 2, (1, 2), "Den", b"\xc3", "held", b"", b"")


def token(model: Model, tenant: bytes = bytes(16), dtype: str = "float32") -> str:
    width = model.network.layout.width
    return sealer().seal(snapshot(model), Binding.of(model.digest, dtype, width, tenant))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tenant", [bytes(16), b"t" * 16], ids=["nobody", "tenant"])
def test_an_operator_opens_the_states_of_every_tenant_and_dtype(
    model: Model, tenant: bytes, dtype: str
) -> None:
    opened = open_for_operator(token(model, tenant, dtype), sealer(), model)
    assert plain_state(opened, model.digest) == plain_state(snapshot(model), model.digest)


def test_a_plain_state_holds_all_that_continues_a_text(model: Model) -> None:
    plain = plain_state(snapshot(model), model.digest)
    row = np.linspace(-1, 1, model.network.layout.width, dtype=np.float32)
    assert np.array_equal(np.float32(plain.pop("row")), row)
    assert plain == {
        "format": "1",
        "digest": model.digest,
        "steps": 5,
        "pending": [3],
        "seed": "18446744073709551615",
        "choice": 2,
        "word": "Den",
        "unsent": [*b"held", 0xC3],
    }


def test_a_state_without_a_pending_token_has_none_in_its_list(model: Model) -> None:
    row = np.zeros(model.network.layout.width, np.float32)
    assert plain_state(Snapshot(row), model.digest)["pending"] == []


def test_a_state_with_the_paths_of_a_crf_is_refused(tmp_path: Path) -> None:
    """Without them, the labels that are open would be lost."""
    head = HeadConfig(crf=True)
    tagger = load_model(save_random_model(tmp_path / "t", "tag", labels=("a", "b"), head=head))
    crf, row = tagger.network.crf, np.zeros(tagger.network.layout.width, np.float32)
    assert crf is not None
    scores = np.ones((2, 2), np.float32)
    paths = crf.extend(crf.begin(row[:0]), scores, scores).pack()
    binding = Binding.of(tagger.digest, "float32", len(row))
    open_labels = Snapshot(row, 2, window=(0, 1, 1, 2), held_back="ab", probabilities=paths)
    with pytest.raises(StateRefused, match=r"t has a CRF, .* cannot hold the paths"):
        open_for_operator(sealer().seal(open_labels, binding), sealer(), tagger)
    begun = sealer().seal(Snapshot(row, word="a"), binding)
    assert plain_state(open_for_operator(begun, sealer(), tagger), tagger.digest)["word"] == "a"


def test_nothing_is_opened_without_the_key_in_time_and_for_its_model(
    model: Model, tmp_path: Path
) -> None:
    other = load_model(save_random_model(tmp_path / "other", vocab_size=9, seed=1))
    good = token(model)
    for refused, key, now, opening, error in (
        (good, b"x" * 32, 1000.0, model, StateUnknownKey),
        (good, KEY, 2000.0, model, StateExpired),
        (good, KEY, 1000.0, other, StateWrongModel),
        (f"{good[:-1]}{'A' if good[-1] != 'A' else 'B'}", KEY, 1000.0, model, StateTampered),
    ):
        with pytest.raises(error):
            open_for_operator(refused, sealer(key, now), opening)


@pytest.mark.parametrize("text", ["", "x", "ä" * 100, "=" * 100, "A" * 40, "_" * 100])
def test_what_is_no_token_is_refused(model: Model, text: str) -> None:
    with pytest.raises(StateRefused):
        open_for_operator(text, sealer(), model)


def test_a_header_that_was_changed_opens_nothing(model: Model) -> None:
    """The tenant and the dtype are read before they are proven."""
    good = token(model)
    for place in range(88):  # the characters of the header
        changed = good[:place] + ("A" if good[place] != "A" else "B") + good[place + 1 :]
        with pytest.raises(StateRefused):
            open_for_operator(changed, sealer(), model)
