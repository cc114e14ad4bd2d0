"""Train the question classifier as Kim's convolutional network (Kim 2014), with torch alone.

    python -m examples.train_cnn --train trec.train --test trec.test --out question-cnn

The files hold one question a line, `LABEL words...`. A share of the training questions is held out
to choose the checkpoint. Writes `weights.pt` (a plain state dict), `options.json`, `tokenizer.json`
and `labels.json`. Embeddings start from random numbers and are trained: CNN-rand in the paper.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from examples import tokens
from examples.training import RunningAverage, optimizer_of

Question = tuple[Tensor, int]
LABELS = ["description", "entity", "abbreviation", "human", "location", "number"]
OPTIONS = {"padding": "full", "activation": "relu"}  # what a state dict does not show


class SentenceCNN(nn.Module):
    """Windows of several widths over the embedding, the maximum of each filter, linear output."""

    def __init__(self, size: int, width: int, filters: int, widths: list[int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, filters, steps, padding=steps - 1) for steps in widths
        )
        self.fc = nn.Linear(filters * len(widths), len(LABELS))
        self.drop, self.drop_words = nn.Dropout(0.5), nn.Dropout(0.2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Take ids (batch, steps) and lengths (batch); return logits (batch, labels).

        Steps after a question's end are zeros, and windows that begin there do not count.
        """
        inside = torch.arange(ids.shape[1]) < lengths[:, None]
        x = (self.drop_words(self.embedding(ids)) * inside[..., None]).transpose(1, 2)
        rows = []
        for conv in self.convs:
            maps = torch.relu(conv(x))
            ends = lengths + maps.shape[2] - ids.shape[1]
            beyond = torch.arange(maps.shape[2]) >= ends[:, None]
            rows.append(maps.masked_fill(beyond[:, None], 0).amax(2))
        logits: Tensor = self.fc(self.drop(torch.cat(rows, 1)))
        return logits


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--train", type=Path, required=True, help="training questions")
    add("--test", type=Path, help="test questions, labelled at the end")
    add("--out", type=Path, required=True, help="folder for the checkpoint")
    add("--epochs", type=int, default=20, help="passes over the training questions")
    add("--batch", type=int, default=50, help="questions in a weight update")
    add("--rate", type=float, default=4e-3, help="highest learning rate")
    add("--decay", type=float, default=0.1, help="weight decay of the matrices")
    add("--width", type=int, default=128, help="width of the embedding")
    add("--filters", type=int, default=100, help="filters of each width")
    add("--widths", type=int, nargs="+", default=[3, 4, 5], help="steps of a filter's window")
    add("--word-dropout", type=float, default=0.1, help="share of the words made unknown")
    add("--held-out", type=float, default=0.1, help="share of the training questions held out")
    add("--seed", type=int, default=1, help="seed of the split, the weights and the dropout")
    return parser.parse_args()


def read_questions(path: Path, tokenizer: Tokenizer) -> list[Question]:
    """Read a file of `LABEL words...` lines."""
    lines = (line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return [(torch.tensor(tokenizer.encode(text).ids), int(label)) for label, text in lines]


def batches(questions: list[Question], size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches in random order: ids (batch, steps) padded on the right, lengths and labels.

    Questions of about the same length are in one batch, so that little of it is padding.
    """
    order = sorted(questions, key=lambda question: (len(question[0]), random.random()))
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    for part in random.sample(parts, len(parts)):
        ids, labels = zip(*part, strict=True)
        lengths = torch.tensor([len(sequence) for sequence in ids])
        yield pad_sequence(list(ids), batch_first=True), lengths, torch.tensor(labels)


@torch.no_grad()
def correct(model: SentenceCNN, questions: list[Question]) -> int:
    """How many questions are labelled right, each on its own."""
    model.eval()
    return sum(
        int(model(ids[None], torch.tensor([len(ids)])).argmax()) == label
        for ids, label in questions
    )


def main() -> None:
    """Train, measuring the averaged weights on the held-out questions after every pass."""
    args = arguments()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    lines = args.train.read_text(encoding="utf-8").splitlines()
    tokenizer = tokens.build((line.split(" ", 1)[1] for line in lines), 2)
    tokens.check(tokenizer, lines)
    questions = read_questions(args.train, tokenizer)
    random.shuffle(questions)
    split = int(len(questions) * (1 - args.held_out))
    train, held_out = questions[:split], questions[split:]

    model = SentenceCNN(tokenizer.get_vocab_size(), args.width, args.filters, args.widths)
    average = RunningAverage(model, 0.99)
    updates = args.epochs * math.ceil(len(train) / args.batch)
    optimizer, schedule = optimizer_of(model, args.rate, args.decay, updates)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "options.json").write_text(json.dumps(OPTIONS, indent=2) + "\n")
    (args.out / "labels.json").write_text(json.dumps(LABELS) + "\n")
    tokenizer.save(str(args.out / "tokenizer.json"))

    best = -1
    for epoch in range(1, args.epochs + 1):
        model.train()
        for ids, lengths, labels in batches(train, args.batch):
            unknown = torch.rand(ids.shape) < args.word_dropout
            logits = model(ids.masked_fill(unknown, 0), lengths)
            optimizer.zero_grad()
            functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            average.update(model)
        right = correct(average.model, held_out)
        print(f"epoch {epoch}: {right} of {len(held_out)} held-out questions right", flush=True)
        if right > best:
            best = right
            torch.save(average.model.state_dict(), args.out / "weights.pt")
    if args.test:
        model.load_state_dict(torch.load(args.out / "weights.pt", weights_only=True))
        test = read_questions(args.test, tokenizer)
        print(f"{correct(model, test)} of {len(test)} test questions right")


if __name__ == "__main__":
    main()
