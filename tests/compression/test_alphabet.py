"""Any bytes are ids and literal bytes of any vocabulary, and ids where the text has some."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.compression.alphabet import Alphabet, Speller
from sruserve.model.folder import Model
from tests.model.text.trained_tokenizers import KINDS, SENTENCES, trained
from tests.support import PRINTABLE, random_model

VOCABULARIES = ["bytes", "ids", "many ids", *KINDS]
DATA = st.lists(
    st.binary(max_size=40)
    | st.text(max_size=40).map(str.encode)
    | st.sampled_from(SENTENCES).map(str.encode)
    | st.text("tobe, \n\tTHAT'é日\u0301", max_size=40).map(str.encode)
).map(b"".join)


def model_of(vocabulary: str, folder: Path) -> Model:
    """A model with a vocabulary: a tokenizer, byte values, or none."""
    if vocabulary == "bytes":
        return random_model(folder, vocabulary=PRINTABLE)
    if vocabulary in ("ids", "many ids"):
        return random_model(folder, vocab_size=120 if vocabulary == "ids" else 1000)
    content = trained(vocabulary).to_str().encode()
    return random_model(folder, vocabulary=content, vocab_size=trained(vocabulary).get_vocab_size())


@pytest.fixture(scope="module", params=VOCABULARIES)
def alphabet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Alphabet:
    return Alphabet(model_of(request.param, tmp_path_factory.mktemp("models") / "m"))


@given(data=DATA)
def test_the_symbols_of_any_bytes_spell_them(alphabet: Alphabet, data: bytes) -> None:
    speller = Speller(alphabet)
    assert b"".join(map(speller.spell, alphabet.symbols(data).tolist())) == data


@pytest.mark.parametrize(
    ("vocabulary", "share"),
    [
        ("bytes", 1.0),
        ("ids", 1.0),
        ("many ids", 1.0),
        ("characters", 0.9),
        ("byte level", 1.0),
        ("split byte level", 1.0),
        ("metaspace first", 0.9),
        ("llama", 0.9),
        ("word piece", 0.5),
    ],
)
def test_a_text_that_the_vocabulary_knows_has_few_literal_bytes(
    tmp_path: Path, vocabulary: str, share: float
) -> None:
    data = b"to be, or not to be: that is the question"
    symbols = Alphabet(model_of(vocabulary, tmp_path / "m")).symbols(data)
    assert (symbols < 0).sum() <= (1 - share) * len(data)


def test_a_byte_that_the_vocabulary_lacks_is_literal_and_the_others_are_not(tmp_path: Path) -> None:
    alphabet = Alphabet(model_of("bytes", tmp_path / "m"))
    symbols = alphabet.symbols(b"to\xffbe\n")
    assert (symbols < 0).tolist() == [False, False, True, False, False, True]


def test_a_character_without_an_entry_does_not_spoil_the_text_around_it(tmp_path: Path) -> None:
    alphabet = Alphabet(model_of("byte level", tmp_path / "m"))
    known = alphabet.symbols(b"to be, or not")
    mixed = alphabet.symbols(b"to be, or not\xff\xfe")
    assert mixed.tolist() == [*known.tolist(), ~0xFF, ~0xFE]
