"""Train a tagger of dates, times, money, e-mail addresses, phone numbers and places.

    python -m examples.train_tagger --out entities
    python -m examples.evaluate tagger --data tests/data/entities.txt --model entities

It reads bytes from left to right; a CRF decides where a span begins once it is clear what it is.
The sentences are made by `entity_sentences.py`, so it needs no data. Measures new sentences, also
of templates, names and places that training never saw. Writes `weights.pt`, and the model folder
`model`, which `sruserve.save` makes.
"""

import argparse
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import sruserve
from examples import fast_training
from examples.entity_sentences import LABELS, Marked, Sentences
from examples.models import Tagger
from examples.spans import TAGS, encoded, exact_spans, f1
from examples.training import RunningAverage, optimizer_of


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the checkpoint and the model folder")
    add("--updates", type=int, default=4000, help="updates of the weights")
    add("--batch", type=int, default=32, help="texts in an update")
    add("--rate", type=float, default=3e-3, help="highest learning rate")
    add("--dropout", type=float, default=0.1, help="dropout of features between layers")
    add("--average", type=float, default=0.998, help="decay of the running average of the weights")
    add("--tested", type=int, default=1000, help="texts of each kind to measure")
    add("--seed", type=int, default=1, help="seed of the sentences, the weights and the dropout")
    return parser.parse_args()


def batches(texts: Iterator[Marked], size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Ids and labels (steps, batch), padded on the right, and lengths.

    A batch has texts of about the same length.
    """
    while True:
        drawn = sorted(map(encoded, islice(texts, size * 32)), key=lambda pair: len(pair[0]))
        firsts = range(0, len(drawn), size)
        for first in random.sample(firsts, len(firsts)):
            ids, labels = zip(*drawn[first : first + size], strict=True)
            lengths = torch.tensor([len(each) for each in ids])
            yield pad_sequence(list(ids)), pad_sequence(list(labels)), lengths


def train(model: Tagger, args: argparse.Namespace) -> Tagger:
    """Train, and return the average of the weights."""
    average = RunningAverage(model, args.average)
    optimizer, schedule = optimizer_of(model, args.rate, 0.0, args.updates)
    print(f"{sum(p.numel() for p in model.parameters()):,} weights, {args.updates:,} updates")
    supply = batches(iter(Sentences(random.Random(args.seed))), args.batch)
    model.train()
    for update, (ids, labels, lengths) in enumerate(islice(supply, args.updates), 1):
        loss = model.crf.loss(model.scores(ids), labels, lengths)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update(model)
        if update % 250 == 0:
            print(f"update {update}: loss {float(loss):.3f} per text", flush=True)
    return average.model


def main() -> None:
    """Train, measure and write."""
    args = arguments()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    fast_training.install()
    model = train(Tagger(TAGS, args.dropout), args)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "weights.pt")
    sruserve.save(
        model, args.out / "model", "tag", tokenizer=list(range(256)), labels=TAGS, lowercase=False
    )
    for name, held_out in (("new sentences", False), ("unseen templates and words", True)):
        supply = iter(Sentences(random.Random(f"test {args.seed}"), held_out=held_out))
        counts = exact_spans(model, list(islice(supply, args.tested)))
        figures = [f"{label or 'all'} {f1(counts, label):.3f}" for label in ("", *LABELS)]
        print(f"F1 of exact spans, {name}: {', '.join(figures)}")


if __name__ == "__main__":
    main()
