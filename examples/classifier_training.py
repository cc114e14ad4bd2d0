"""What both scripts that train classifiers share: arguments, batches, the loss and the passes."""

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from examples.models import Classifier, Question, correct
from examples.training import RunningAverage, optimizer_of


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser of the arguments that both scripts have; their defaults are the classifier's."""
    parser = argparse.ArgumentParser(
        description=(doc or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--train", type=Path, required=True, help="training texts, `LABEL words...` a line")
    add("--out", type=Path, required=True, help="folder for the checkpoint")
    add("--epochs", type=int, default=20, help="passes over the training texts")
    add("--batch", type=int, default=32, help="texts in a weight update")
    add("--rate", type=float, default=3e-3, help="highest learning rate")
    add("--decay", type=float, default=0.1, help="weight decay of the matrices")
    add("--dropout", type=float, default=0.4, help="dropout of features, in and between layers")
    add("--word-dropout", type=float, default=0.1, help="share of the words made unknown")
    add("--early", type=float, default=0.3, help="weight of the loss at the steps before the last")
    add("--least", type=int, default=2, help="occurrences that make a word known")
    add("--average", type=float, default=0.998, help="decay of the running average of the weights")
    add("--seed", type=int, default=1, help="seed of the weights, the order and the dropout")
    return parser


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


def write_description(
    out: Path, options: dict[str, Any], labels: list[str], tokenizer: Tokenizer
) -> None:
    """Write `options.json`, `labels.json` and `tokenizer.json`, which belong to the weights."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "options.json").write_text(json.dumps(options, indent=2) + "\n")
    (out / "labels.json").write_text(json.dumps(labels) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))


def fit(
    model: Classifier, train: list[Question], held_out: list[Question], args: argparse.Namespace
) -> None:
    """Train, and keep the averaged weights of the pass that gets most held-out texts right."""
    average = RunningAverage(model, args.average)
    updates = args.epochs * math.ceil(len(train) / args.batch)
    optimizer, schedule = optimizer_of(model, args.rate, args.decay, updates)
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
        print(f"epoch {epoch}: {right} of {len(held_out)} held-out texts right", flush=True)
        if right >= best:
            best = right
            torch.save(average.model.state_dict(), args.out / "weights.pt")
