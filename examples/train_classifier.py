"""Train the question classifier with the reference SRU library.

    python -m examples.train_classifier --train trec.train --out question-type
    python -m examples.evaluate classifier --data trec.test --model question-type

A file holds one question a line, `LABEL words...`. A share of the training questions is held out to
choose the checkpoint; the test questions are left for `evaluate.py`. Writes `weights.pt` (a plain
state dict), `options.json` (the arguments of `sru.SRU`), `tokenizer.json` and `labels.json`. Ctrl-C
keeps the best checkpoint so far.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from examples import fast_training, tokens
from examples.models import Classifier, Question, correct, read_questions
from examples.training import RunningAverage, optimizer_of

LABELS = ["description", "entity", "abbreviation", "human", "location", "number"]
OPTIONS = {"input_size": 128, "hidden_size": 192, "num_layers": 2, "layer_norm": True}


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--train", type=Path, required=True, help="training questions")
    add("--out", type=Path, required=True, help="folder for the checkpoint")
    add("--epochs", type=int, default=20, help="passes over the training questions")
    add("--batch", type=int, default=32, help="questions in a weight update")
    add("--rate", type=float, default=3e-3, help="highest learning rate")
    add("--decay", type=float, default=0.1, help="weight decay of the matrices")
    add("--dropout", type=float, default=0.4, help="dropout of features, in and between layers")
    add("--word-dropout", type=float, default=0.1, help="share of the words made unknown")
    add("--early", type=float, default=0.3, help="weight of the loss at the steps before the last")
    add("--least", type=int, default=2, help="occurrences that make a word known")
    add("--average", type=float, default=0.998, help="decay of the running average of the weights")
    add("--held-out", type=float, default=0.1, help="share of the training questions held out")
    add("--seed", type=int, default=1, help="seed of the split, the weights and the dropout")
    return parser.parse_args()


def batches(questions: list[Question], size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches in random order: ids (steps, batch) padded on the right, lengths and labels.

    An SRU that runs left to right never sees the padding before a question's own last step.
    """
    order = random.sample(questions, len(questions))
    for first in range(0, len(order), size):
        ids, labels = zip(*order[first : first + size], strict=True)
        lengths = torch.tensor([len(sequence) for sequence in ids])
        yield pad_sequence(list(ids)), lengths, torch.tensor(labels)


def loss_of(logits: Tensor, lengths: Tensor, labels: Tensor, early: float) -> Tensor:
    """Cross-entropy at every question's last step, plus `early` times the mean before it."""
    steps, batch, _ = logits.shape
    every = functional.cross_entropy(
        logits.flatten(0, 1), labels.expand(steps, batch).flatten(), reduction="none"
    ).view(steps, batch)
    last = every[lengths - 1, torch.arange(batch)].mean()
    before = torch.arange(steps)[:, None] < lengths - 1
    return last + early * every[before].mean()


def main() -> None:
    """Train, measuring the averaged weights on the held-out questions after every pass."""
    args = arguments()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    fast_training.install()
    lines = args.train.read_text(encoding="utf-8").splitlines()
    tokenizer = tokens.build((line.split(" ", 1)[1] for line in lines), args.least)
    tokens.check(tokenizer, lines)
    questions = read_questions(args.train, tokenizer)
    random.shuffle(questions)
    split = int(len(questions) * (1 - args.held_out))
    train, held_out = questions[:split], questions[split:]

    model = Classifier(tokenizer.get_vocab_size(), len(LABELS), OPTIONS, args.dropout)
    average = RunningAverage(model, args.average)
    updates = args.epochs * math.ceil(len(train) / args.batch)
    optimizer, schedule = optimizer_of(model, args.rate, args.decay, updates)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "options.json").write_text(json.dumps(OPTIONS, indent=2) + "\n")
    (args.out / "labels.json").write_text(json.dumps(LABELS) + "\n")
    tokenizer.save(str(args.out / "tokenizer.json"))
    print(f"{sum(p.numel() for p in model.parameters()):,} weights, {updates:,} updates")

    best = 0
    for epoch in range(1, args.epochs + 1):
        model.train()
        passes = list(batches(train, args.batch))
        for ids, lengths, labels in track(passes, f"epoch {epoch}/{args.epochs}", transient=True):
            unknown = torch.rand(ids.shape) < args.word_dropout
            loss = loss_of(model(ids.masked_fill(unknown, 0)), lengths, labels, args.early)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            average.update(model)
        right = correct(average.model, held_out)
        print(f"epoch {epoch}: {right} of {len(held_out)} held-out questions right", flush=True)
        if right >= best:
            best = right
            torch.save(average.model.state_dict(), args.out / "weights.pt")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped; the best checkpoint so far is kept")
