"""Measure a trained checkpoint with the reference SRU library, one sequence at a time.

    python -m examples.evaluate classifier --data trec.test --model question-type
    python -m examples.evaluate language-model --data shakespeare.txt --model shakespeare
    python -m examples.evaluate tagger --data tests/data/entities.txt --model entities

The classifier labels every question on its own; the language model reads the last tenth of the text
in one pass, its state carried from zero; the tagger reads every text on its own. All run in
float32, without padding. The figures are printed and written to `reference.json` in the model's
folder, for a server to be held to.
"""

import argparse
import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from examples.models import (
    Classifier,
    LanguageModel,
    Tagger,
    correct,
    encode,
    predict,
    read_questions,
    vocabulary,
)
from examples.spans import TAGS, exact_spans, f1, read_marked


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("task", choices=list(MEASURES))
    parser.add_argument("--data", type=Path, required=True, help="test texts, or the text")
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    return parser.parse_args()


def classifier(data: Path, folder: Path) -> dict[str, Any]:
    """Accuracy over all questions in `data`."""
    options = json.loads((folder / "options.json").read_text())
    labels = json.loads((folder / "labels.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = Classifier(tokenizer.get_vocab_size(), len(labels), options)
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    questions = read_questions(data, tokenizer)
    right = correct(model, questions)
    return {"accuracy": right / len(questions), "correct": right, "questions": len(questions)}


def language_model(data: Path, folder: Path) -> dict[str, Any]:
    """Log-likelihood in nats of the last tenth of `data`, and bits per character scored."""
    options = json.loads((folder / "options.json").read_text())
    vocab = json.loads((folder / "vocab.json").read_text())
    text = data.read_bytes()
    if vocab != vocabulary(text):
        raise SystemExit(f"{data} is not the text that the model in {folder} was trained on")
    model = LanguageModel(len(vocab), options)
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    ids = encode(text[int(0.9 * len(text)) :], vocab)
    logits, scored = predict(model, ids).double(), len(ids) - 1
    total = -functional.cross_entropy(logits, ids[1:], reduction="sum").item()
    bits = -total / scored / math.log(2)
    return {"bits_per_character": bits, "log_likelihood": total, "characters": scored}


def tagger(data: Path, folder: Path) -> dict[str, Any]:
    """The exact spans of all texts in `data`, and their F1."""
    model = Tagger(TAGS)
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    texts = read_marked(data)
    counts = exact_spans(model, texts)
    sums = {name: counts[name] for name in ("right", "marked", "wanted")}
    return {"f1": f1(counts), "texts": len(texts), **sums}


MEASURES = {"classifier": classifier, "language-model": language_model, "tagger": tagger}


def main() -> None:
    """Measure, print and write."""
    args = arguments()
    measured = MEASURES[args.task](args.data, args.model)
    figures = {"library": f"sru=={version('sru')}", **measured}
    (args.model / "reference.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
