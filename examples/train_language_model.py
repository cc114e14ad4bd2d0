"""Train a character language model with the reference SRU library.

    python -m examples.train_language_model --text shakespeare.txt --out shakespeare
    python -m examples.evaluate language-model --data shakespeare.txt --model shakespeare

The first nine tenths of the text are for training; the last tenth is left for `evaluate.py`. In
every pass most speakers get new names (see `renaming.py`). A slice at the end of the nine tenths
is held out to choose the checkpoint and its temperature; then training continues for a few passes,
at a low rate, with most of that slice too. Writes `weights.pt` (a plain state dict),
`options.json` (the arguments of `sru.SRU`) and `vocab.json` (the byte of every id) whenever the
held-out slice improves, so that Ctrl-C keeps the best checkpoint so far.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

from examples import fast_training
from examples.models import LanguageModel, encode, predict, vocabulary
from examples.renaming import Names, rename
from examples.training import RunningAverage, optimizer_of

OPTIONS = {
    "input_size": 384,
    "hidden_size": 384,
    "num_layers": 6,
    "layer_norm": True,
    "rescale": True,
    "highway_bias": -2.0,
}
# A network trained long on a small text is too sure of itself; dividing its logits repairs that.
TEMPERATURES = [1 + step / 20 for step in range(21)]


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--text", type=Path, required=True, help="the text to learn")
    add("--out", type=Path, required=True, help="folder for the checkpoint")
    add("--epochs", type=int, default=36, help="passes over the training text")
    add("--finish", type=int, default=8, help="passes over all but a little of it at the end")
    add("--finish-only", action="store_true", help="continue from the checkpoint in --out")
    add("--batch", type=int, default=20, help="streams that the text is cut into")
    add("--steps", type=int, default=320, help="characters between weight updates, per stream")
    add("--rate", type=float, default=3e-3, help="highest learning rate")
    add("--decay", type=float, default=0.2, help="weight decay of the matrices")
    add("--dropout", type=float, default=0.35, help="dropout between layers and before the output")
    add("--input-dropout", type=float, default=0.1, help="dropout of embedded characters' features")
    add("--average", type=float, default=0.998, help="decay of the running average of the weights")
    add("--held-out", type=float, default=0.05, help="share of the training text held out")
    add("--seed", type=int, default=1, help="seed of the weights, the cuts and the dropout")
    return parser.parse_args()


def segments(text: Tensor, batch: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass over `text` as `batch` parallel streams: inputs and targets (steps, batch).

    Every pass starts at another character, so that the cuts between segments move.
    """
    start = int(torch.randint(steps, ()))
    length = (len(text) - start - 1) // batch
    x, y = (text[start + i :][: length * batch].view(batch, length).t() for i in (0, 1))
    for first in range(0, length - steps + 1, steps):
        yield x[first : first + steps], y[first : first + steps]


def calibrate(model: LanguageModel, ids: Tensor) -> tuple[float, float]:
    """The least bits per character of `ids[1:]` at any temperature, and that temperature."""
    logits, targets = predict(model, ids), ids[1:]
    bits = {
        temperature: functional.cross_entropy(logits / temperature, targets).item() / math.log(2)
        for temperature in TEMPERATURES
    }
    best = min(bits, key=lambda temperature: bits[temperature])
    return bits[best], best


def at_temperature(model: LanguageModel, temperature: float) -> dict[str, Tensor]:
    """The weights of `model` with its logits divided by `temperature` in the output layer."""
    return {
        name: tensor / temperature if name.startswith("output_layer.") else tensor
        for name, tensor in model.state_dict().items()
    }


def one_pass(
    model: LanguageModel,
    average: RunningAverage[LanguageModel],
    optimizer: torch.optim.Optimizer,
    schedule: LRScheduler,
    passes: Sequence[tuple[Tensor, Tensor]],
    name: str,
) -> float:
    """Train on every segment once; returns the bits per character, with dropout."""
    model.train()
    state, losses = None, []
    for x, y in track(passes, name, transient=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, state = model(x, state)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        state = state.detach()
        losses.append(loss.item())
        average.update(model)
    return sum(losses) / len(losses) / math.log(2)


def main() -> None:
    """Learn with most speakers renamed, then finish on nearly all of the training text."""
    args = arguments()
    torch.manual_seed(args.seed)
    fast_training.install()
    text = args.text.read_bytes()
    vocab = vocabulary(text)
    learned = text[: int(0.9 * len(text))].decode()
    split = int(len(learned) * (1 - args.held_out))
    learned, rest = learned[:split], learned[split:]
    names, pick = Names(learned), random.Random(args.seed)
    model = LanguageModel(len(vocab), OPTIONS, args.dropout, args.input_dropout)
    print(f"{sum(p.numel() for p in model.parameters()):,} weights")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "options.json").write_text(json.dumps(OPTIONS, indent=2) + "\n")
    (args.out / "vocab.json").write_text(json.dumps(vocab) + "\n")
    weights = args.out / "weights.pt"

    def stage(
        title: str, train: str, held_out: str, epochs: int, rate: float, share: float
    ) -> None:
        """Train for `epochs` passes, keeping the best weights on `held_out`, all renamed."""
        unseen = encode(rename(held_out, names, pick, share=1.0).encode(), vocab)
        average = RunningAverage(model, args.average)
        updates = epochs * (len(train) // args.batch // args.steps)
        optimizer, schedule = optimizer_of(model, rate, args.decay, updates)
        best = math.inf
        for epoch in range(1, epochs + 1):
            renamed = encode(rename(train, names, pick, share).encode(), vocab)
            passes = list(segments(renamed, args.batch, args.steps))
            name = f"{title} {epoch}/{epochs}"
            trained = one_pass(model, average, optimizer, schedule, passes, name)
            bits, temperature = calibrate(average.model, unseen)
            print(f"{name}: {trained:.4f} bits in training, {bits:.4f} held out", flush=True)
            if bits < best:
                best = bits
                torch.save(at_temperature(average.model, temperature), weights)

    if not args.finish_only:
        stage("learning", learned, rest, args.epochs, args.rate, share=0.8)
    model.load_state_dict(torch.load(weights, weights_only=True))
    aside = rest.find("\n\n", len(rest) // 4)  # still held out, to choose when to stop
    last = learned + rest[aside:]
    stage("finishing", last, rest[:aside], args.finish, args.rate / 3, share=0.4)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped; the best checkpoint so far is kept")
