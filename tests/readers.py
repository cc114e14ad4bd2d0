"""Small random readers for tests."""

from pathlib import Path
from typing import Any

from sruserve.model.config import ModelConfig
from sruserve.model.folder import save_model
from sruserve.model.reader.config import ReaderConfig
from sruserve.model.reader.vocabulary import word_tokenizer
from tests.support import random_config, random_tensors

WORDS = (
    "<NULL>", "<UNK>", "Ada", "Ben", "lives", "live", "in", "Lisbon", "Porto", ".", "?", "Where",
    "Who", "does", "the", "n't", "cafe\u0301",
)  # fmt: skip
WIDTH = 6


def reader_config(
    family: str = "sru", *, layers: int = 2, vocab_size: int = len(WORDS), **options: Any
) -> ModelConfig:
    """A reader; options: of `ReaderConfig`, and the stack's `concat_layers`."""
    stack: dict[str, Any] = {"concat_layers": True} if options.pop("concat_layers", True) else {}
    options = {"features": ("in_question", "in_question_uncased", "tf"), **options}
    reader = ReaderConfig.model_validate({"question_layers": 2, **options})
    return random_config(
        "answer",
        model_type=family,
        vocab_size=vocab_size,
        input_width=WIDTH,
        reader=reader,
        input_size=reader.document_width(WIDTH),
        hidden_size=5,
        num_layers=layers,
        bidirectional=True,
        **stack,
    )


def save_reader(folder: Path, family: str = "sru", seed: int = 0, **options: Any) -> Path:
    """Write a reader with random weights and the vocabulary `WORDS`."""
    config = reader_config(family, **options)
    lowercase = config.reader is not None and config.reader.uncased
    vocabulary = {"tokenizer.json": word_tokenizer(WORDS, "<UNK>", lowercase)}
    save_model(folder, config, random_tensors(config, seed), vocabulary)
    return folder
