"""Train the sentiment classifier with the reference SRU library.

    python -m examples.train_sentiment --train sst.train --dev sst.dev --out sentiment
    python -m examples.evaluate classifier --data sst.test --model sentiment

A file holds one sentence a line, `LABEL words...`; label 1 is positive. The first feature of each
word's embedding begins as its log-count ratio of naive Bayes (Wang and Manning 2012), so that the
network starts from what each word says alone. The development sentences choose the checkpoint; the
test sentences are left for `evaluate.py`. Writes the same files as `train_classifier.py`.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from examples import fast_training, tokens
from examples.classifier_training import fit, parser_of, write_description
from examples.models import Classifier, Question, read_questions

LABELS = ["negative", "positive"]
OPTIONS = {"input_size": 96, "hidden_size": 128, "num_layers": 2, "layer_norm": True}


def log_count_ratios(sentences: Sequence[Question], words: int) -> Tensor:
    """How much more often each word is in positive sentences than in negative ones, (words).

    The logarithm of the ratio of its shares, each counted once a sentence, with one added.
    """
    counts = torch.ones(2, words)
    for ids, label in sentences:
        counts[label, sorted(set(ids.tolist()))] += 1
    negative, positive = (counts / counts.sum(1, keepdim=True)).log()
    ratios: Tensor = positive - negative
    return ratios


def main() -> None:
    """Train, measuring the averaged weights on the development sentences after every pass."""
    parser = parser_of(__doc__)
    parser.set_defaults(epochs=12, dropout=0.5, word_dropout=0.25)
    parser.add_argument("--dev", type=Path, required=True, help="development sentences")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    fast_training.install()
    lines = args.train.read_text(encoding="utf-8").splitlines()
    tokenizer = tokens.build((line.split(" ", 1)[1] for line in lines), args.least)
    tokens.check(tokenizer, lines)
    train, dev = read_questions(args.train, tokenizer), read_questions(args.dev, tokenizer)
    model = Classifier(tokenizer.get_vocab_size(), len(LABELS), OPTIONS, args.dropout)
    with torch.no_grad():
        ratios = log_count_ratios(train, tokenizer.get_vocab_size())
        weight = model.emb_layer.embedding.weight
        weight[:, 0] = ratios
        weight[0] = 0  # the unknown word
    write_description(args.out, OPTIONS, LABELS, tokenizer)
    fit(model, train, dev, args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped; the best checkpoint so far is kept")
