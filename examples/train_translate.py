"""Train a small Transformer + SRU on data that this script makes: numbers and dates.

    python -m examples.train_translate --out translate
    sruserve import translate/weights.pt models/translate --task translate \\
        --options translate/options.json --vocab translate/tokenizer.json

Needs torch and tokenizers. Writes `weights.pt` (a plain state dict), `options.json` and
`tokenizer.json`, and prints how many held-out sentences are translated exactly.
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
from examples.translation_data import Pair, pairs
from examples.translation_model import TransformerSRU

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


def loss_of(model: TransformerSRU, source: Tensor, target: Tensor) -> Tensor:
    """The mean cross-entropy of the targets' ids."""
    scores = model(source, target[:, :-1], PAD)
    return nn.functional.cross_entropy(
        scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.05
    )


@torch.no_grad()
def translated(model: TransformerSRU, tokenizer: Tokenizer, sources: Sequence[str]) -> list[str]:
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


def exact(model: TransformerSRU, tokenizer: Tokenizer, examples: Sequence[Pair]) -> float:
    """The share of examples that are translated exactly."""
    right = 0
    for first in range(0, len(examples), 500):
        sources, targets = zip(*examples[first : first + 500], strict=True)
        ours = translated(model, tokenizer, sources)
        right += sum(own == other for own, other in zip(ours, targets, strict=True))
    return right / len(examples)


def train(args: argparse.Namespace) -> tuple[TransformerSRU, Tokenizer]:
    """Train; print the loss and the share of exact translations now and then."""
    generator = random.Random(args.seed)
    torch.manual_seed(args.seed)
    stream, held_out = pairs(generator, False), pairs(random.Random(args.seed + 1), True)
    tokenizer = tokenizer_of(list(islice(stream, args.sentences)), args.vocabulary)
    model = TransformerSRU(
        tokenizer.get_vocab_size(), args.width, args.heads, args.inner, args.layers, args.dropout
    )
    optimizer, schedule = optimizer_of(model, args.rate, 0.01, args.updates)
    average = RunningAverage(model, 0.99)
    some = list(islice(held_out, 200))
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
            share = exact(average.model, tokenizer, some)
            print(f"update {update}: loss {loss.item():.4f}, exact {share:.1%}", flush=True)
    return average.model, tokenizer


def main() -> None:
    """Train and write the checkpoint."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--width", type=int, default=64, help="features of a position")
    parser.add_argument("--inner", type=int, default=128, help="width of the SRU layers")
    parser.add_argument("--heads", type=int, default=4, help="heads of attention")
    parser.add_argument("--layers", type=int, default=2, help="layers of each side")
    parser.add_argument("--vocabulary", type=int, default=448, help="entries of the tokenizer")
    parser.add_argument("--sentences", type=int, default=20_000, help="that the tokenizer reads")
    parser.add_argument("--updates", type=int, default=2500, help="updates of the weights")
    parser.add_argument("--batch", type=int, default=64, help="sentences in an update")
    parser.add_argument("--rate", type=float, default=3e-3, help="largest learning rate")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of dropped numbers")
    parser.add_argument("--held-out", type=int, default=4000, help="sentences of the evaluation")
    parser.add_argument("--seed", type=int, default=1, help="seed of the data and the weights")
    args = parser.parse_args()
    model, tokenizer = train(args)
    examples = list(islice(pairs(random.Random(args.seed + 2), True), args.held_out))
    share = exact(model, tokenizer, examples)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.checkpoint(), args.out / "weights.pt")
    options = {
        "nhead": args.heads,
        "release": "2.6.0",
        "embedding_scale": args.width**0.5,
        "positions": "sinusoidal",
        "max_source": LONGEST,
        "max_target": LONGEST,
        "source": {"bos": BOS, "eos": EOS, "pad": PAD},
        "target": {"bos": BOS, "eos": EOS, "pad": PAD},
    }
    (args.out / "options.json").write_text(json.dumps(options))
    tokenizer.save(str(args.out / "tokenizer.json"))
    print(f"{share:.2%} of {len(examples):,} held-out sentences exact; wrote {args.out}")


if __name__ == "__main__":
    main()
