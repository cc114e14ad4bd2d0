"""Train the question classifier with the reference SRU library.

    python -m examples.train_classifier --train trec.train --out question-type
    python -m examples.evaluate classifier --data trec.test --model question-type

A file holds one question a line, `LABEL words...`. A share of the training questions is held out to
choose the checkpoint; the test questions are left for `evaluate.py`. Writes `weights.pt` (a plain
state dict), `options.json` (the arguments of `sru.SRU`), `tokenizer.json` and `labels.json`. Ctrl-C
keeps the best checkpoint so far.
"""

import random

import torch

from examples import fast_training, tokens
from examples.classifier_training import fit, parser_of, write_description
from examples.models import Classifier, read_questions

LABELS = ["description", "entity", "abbreviation", "human", "location", "number"]
OPTIONS = {"input_size": 128, "hidden_size": 192, "num_layers": 2, "layer_norm": True}


def main() -> None:
    """Train, measuring the averaged weights on the held-out questions after every pass."""
    parser = parser_of(__doc__)
    share = "share of the training questions held out"
    parser.add_argument("--held-out", type=float, default=0.1, help=share)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    fast_training.install()
    lines = args.train.read_text(encoding="utf-8").splitlines()
    tokenizer = tokens.build((line.split(" ", 1)[1] for line in lines), args.least)
    tokens.check(tokenizer, lines)
    questions = read_questions(args.train, tokenizer)
    random.shuffle(questions)
    split = int(len(questions) * (1 - args.held_out))
    model = Classifier(tokenizer.get_vocab_size(), len(LABELS), OPTIONS, args.dropout)
    write_description(args.out, OPTIONS, LABELS, tokenizer)
    fit(model, questions[:split], questions[split:], args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped; the best checkpoint so far is kept")
