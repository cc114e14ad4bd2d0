"""Train a small forecaster on data that this script makes: hourly load, by the hour and the week.

    python -m examples.train_forecaster --out forecaster
    sruserve import forecaster/weights.pt models/forecaster --task regress \\
        --options forecaster/options.json --labels forecaster/names.json

An LSTM reads one load an hour and predicts the next hour's; the server feeds it back for the hours
after. Needs torch alone. Writes `weights.pt` (a plain state dict), `options.json` and `names.json`.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn

HOURS = 24 * 7 * 20


class Forecaster(nn.Module):
    """The next hour's load from the hours before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, width, batch_first=True)
        self.fc = nn.Linear(width, 1)

    def forward(self, load: Tensor) -> Tensor:
        """Predict from loads (batch, hours, 1); returns those after each hour, of that shape."""
        predicted: Tensor = self.fc(self.rnn(load)[0])
        return predicted


def made_up_load(hours: int, seed: int) -> Tensor:
    """A load for each hour, (hours, 1), about 0: a daily and a weekly wave, and noise."""
    hour = torch.arange(hours)
    daily = torch.sin(2 * math.pi * hour / 24)
    weekly = 0.5 * torch.sin(2 * math.pi * hour / (24 * 7))
    noise = 0.05 * torch.randn(hours, generator=torch.Generator().manual_seed(seed))
    return (daily + weekly + noise)[:, None]


def train(model: Forecaster, load: Tensor, updates: int, rate: float) -> float:
    """Train on random weeks; returns the last mean squared error."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    length = 24 * 7
    loss = torch.zeros(())
    for _ in range(updates):
        starts = torch.randint(0, len(load) - length - 1, (16,))
        weeks = torch.stack([load[start : start + length + 1] for start in starts.tolist()])
        loss = nn.functional.mse_loss(model(weeks[:, :-1]), weeks[:, 1:])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return float(loss)


def main() -> None:
    """Train and write the checkpoint."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--width", type=int, default=32, help="width of the LSTM")
    parser.add_argument("--updates", type=int, default=300, help="updates of the weights")
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate")
    parser.add_argument("--seed", type=int, default=1, help="seed of the data and the weights")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Forecaster(args.width)
    loss = train(model, made_up_load(HOURS, args.seed), args.updates, args.rate)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "weights.pt")
    options = {"forecasts": True, "units": ["standard deviations"]}
    (args.out / "options.json").write_text(json.dumps(options))
    (args.out / "names.json").write_text(json.dumps(["load"]))
    print(f"mean squared error {loss:.4f}; wrote {args.out}")


if __name__ == "__main__":
    main()
