"""Train a small translator on data that this script makes: numbers and dates.

    python -m examples.train_translate --out numbers
    sruserve import numbers/weights.pt models/numbers --task translate \\
        --options numbers/options.json --vocab numbers/tokenizer.json

Needs torch and tokenizers. Writes `weights.pt` (a plain state dict), `options.json`,
`tokenizer.json` and `reference.json`: what it makes of held-out sentences where it errs.
`--network transformer --width 64` trains a Transformer + SRU instead of recurrent layers.
"""

import argparse
import json
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from examples.training import RunningAverage, optimizer_of
from examples.translation_data import Pair, held_out, pairs
from examples.translation_model import TransformerSRU
from examples.translation_recurrent import RecurrentSRU

Network = RecurrentSRU | TransformerSRU

PAD, BOS, EOS = 0, 1, 2
SPECIAL = ["<pad>", "<s>", "</s>"]
LONGEST = 48  # ids of a source or a target


def tokenizer_of(examples: Sequence[Pair], size: int) -> Tokenizer:
    """A byte-pair tokenizer of both languages; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for pair in examples for text in pair), trainer)
    return tokenizer


def batch_of(tokenizer: Tokenizer, examples: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Sources and targets, (batch, steps), padded; both have the special ids around them."""

    def padded(texts: list[str]) -> Tensor:
        ids = [[BOS, *encoding.ids, EOS] for encoding in tokenizer.encode_batch(texts)]
        longest = max(map(len, ids))
        return torch.tensor([row + [PAD] * (longest - len(row)) for row in ids])

    sources, targets = zip(*examples, strict=True)
    return padded(list(sources)), padded(list(targets))


def loss_of(model: Network, source: Tensor, target: Tensor) -> Tensor:
    """The mean cross-entropy of the targets' ids."""
    padding = source == PAD
    scores = model.decode(model.encode(source, padding), padding, target[:, :-1])
    return nn.functional.cross_entropy(
        scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.05
    )


@torch.no_grad()
def translated(model: Network, tokenizer: Tokenizer, sources: Sequence[str]) -> list[str]:
    """Translate greedily, all sources together."""
    model.eval()
    source, _ = batch_of(tokenizer, [(text, "") for text in sources])
    padding = source == PAD
    memory = model.encode(source, padding)
    target = torch.full((len(sources), 1), BOS)
    while target.shape[1] < LONGEST and not (target == EOS).any(1).all():
        best = model.decode(memory, padding, target)[:, -1].argmax(1)
        target = torch.cat((target, best[:, None]), 1)
    rows = [row[1 : row.index(EOS) if EOS in row else None] for row in target.tolist()]
    return list(tokenizer.decode_batch(rows))


def wrong(model: Network, tokenizer: Tokenizer, examples: Sequence[Pair]) -> dict[str, str]:
    """The translations that are not exact, by their sources."""
    wrong = dict[str, str]()
    for first in range(0, len(examples), 500):
        batch = examples[first : first + 500]
        ours = translated(model, tokenizer, [source for source, _ in batch])
        wrong |= {s: own for (s, target), own in zip(batch, ours, strict=True) if own != target}
    return wrong


def network_of(args: argparse.Namespace, size: int) -> Network:
    """The untrained network that the arguments ask for."""
    if args.network == "recurrent":
        return RecurrentSRU(size, args.width, args.layers, args.dropout)
    return TransformerSRU(size, args.width, args.heads, args.inner, args.layers, args.dropout)


def train(args: argparse.Namespace) -> tuple[Network, Tokenizer]:
    """Train; print the loss and the share of exact translations now and then."""
    torch.manual_seed(args.seed)
    stream = pairs(random.Random(args.seed))
    tokenizer = tokenizer_of(list(islice(stream, args.sentences)), args.vocabulary)
    model = network_of(args, tokenizer.get_vocab_size())
    optimizer, schedule = optimizer_of(model, args.rate, 0.01, args.updates)
    average = RunningAverage(model, 0.99)
    some = [pair for kind in held_out().values() for pair in kind[:: len(kind) // 60]]
    for update in range(1, args.updates + 1):
        model.train()
        source, target = batch_of(tokenizer, list(islice(stream, args.batch)))
        loss = loss_of(model, source, target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update(model)
        if update % 250 == 0:
            share = 1 - len(wrong(average.model, tokenizer, some)) / len(some)
            print(f"update {update}: loss {loss.item():.4f}, exact {share:.1%}", flush=True)
    return average.model, tokenizer


def main() -> None:
    """Train and write the checkpoint."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--network", choices=("recurrent", "transformer"), default="recurrent")
    parser.add_argument("--width", type=int, default=128, help="features of a position")
    parser.add_argument("--inner", type=int, default=128, help="of a Transformer's SRU layers")
    parser.add_argument("--heads", type=int, default=4, help="of a Transformer's attention")
    parser.add_argument("--layers", type=int, default=2, help="layers of each side")
    parser.add_argument("--vocabulary", type=int, default=448, help="entries of the tokenizer")
    parser.add_argument("--sentences", type=int, default=20_000, help="that the tokenizer reads")
    parser.add_argument("--updates", type=int, default=5000, help="updates of the weights")
    parser.add_argument("--batch", type=int, default=64, help="sentences in an update")
    parser.add_argument("--rate", type=float, default=3e-3, help="largest learning rate")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of dropped numbers")
    parser.add_argument("--held-out", type=int, help="evaluate so many of each kind, not all")
    parser.add_argument("--seed", type=int, default=1, help="seed of the data and the weights")
    args = parser.parse_args()
    model, tokenizer = train(args)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.checkpoint(), args.out / "weights.pt")
    options = {
        **model.options(),
        "max_source": LONGEST,
        "max_target": LONGEST,
        "source": {"bos": BOS, "eos": EOS, "pad": PAD},
        "target": {"bos": BOS, "eos": EOS, "pad": PAD},
    }
    (args.out / "options.json").write_text(json.dumps(options))
    tokenizer.save(str(args.out / "tokenizer.json"))
    reference = {}
    for kind, examples in held_out().items():
        mistakes = wrong(model, tokenizer, examples[: args.held_out])
        count = len(examples[: args.held_out])
        reference[kind] = {"sentences": count, "wrong": mistakes}
        print(f"{kind}: {count - len(mistakes):,} of {count:,} held-out sentences exact")
    (args.out / "reference.json").write_text(json.dumps(reference, indent=2) + "\n")


if __name__ == "__main__":
    main()
