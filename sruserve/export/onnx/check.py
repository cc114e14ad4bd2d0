"""A graph against its network: random inputs, lengths and splits."""

from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from sruserve.export.errors import ExportError
from sruserve.export.onnx.integer import INTEGER_TOLERANCE
from sruserve.export.onnx.metadata import CASE_NUMBERS
from sruserve.export.onnx.signature import answer_of, signature_of
from sruserve.export.runtime.session import GraphSession
from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import CPU
from sruserve.model.network import Network

TOLERANCE = 1e-5
_LENGTHS = (7, 1, 4, 0, 12)  # steps of the sequences of a batch
_CASE_LENGTHS = (5, 3)
_CUTS = (0, 3)  # first step of each part of a sequence that is split


class GraphCheck:
    """Runs a graph and the network side by side; raises `ExportError` where they differ.

    network: in float32, on the CPU. tolerance: of the largest number of an output, or of 1; by
    default `INTEGER_TOLERANCE` for int8 weights, and `TOLERANCE` for others.
    """

    def __init__(
        self, model: ir.Model, network: Network, seed: int = 0, tolerance: float | None = None
    ) -> None:
        self._network, self._config = network, network.config
        self._random = torch.Generator().manual_seed(seed)
        by_default = TOLERANCE if self._config.weights is None else INTEGER_TOLERANCE
        self._tolerance = by_default if tolerance is None else tolerance
        self._session = GraphSession(ir.to_proto(model).SerializeToString(), CPU)

    def run(self, kind: str) -> None:
        """Compare the graph: "step" or "sequence"."""
        if kind == "step":
            self.step()
        else:
            self.sequence()

    def step(self) -> None:
        """Compare some steps of streams that begin from random states."""
        streams = len(_LENGTHS)
        states = self._states(streams)
        ours = torch.from_numpy(states.numpy().copy())
        for _ in range(3):
            inputs = [self._inputs(1) for _ in range(streams)]
            expected = self._expected(inputs, states)
            outputs = self._run({**self._named(torch.cat(inputs)), "state": ours})
            self._compare(outputs, expected, states)
            ours = outputs["new_state"]

    def sequence(self) -> None:
        """Compare a batch of sequences, whole and split."""
        if self._config.task == "pair":
            self._pairs()
            return
        sequences = [self._inputs(length) for length in _LENGTHS]
        splits = [[0]]
        if self._network.supports_streaming:
            splits.append(list(_CUTS))
        for cuts in splits:
            states = self._states(len(_LENGTHS), zeros=not self._network.supports_streaming)
            ours = states.clone()
            for begin, end in zip(cuts, [*cuts[1:], max(_LENGTHS)], strict=True):
                parts = [sequence[begin:end] for sequence in sequences]
                expected = self._expected(parts, states)
                outputs = self._run({**self._padded(parts), "state": ours})
                self._compare(outputs, expected, states)
                ours = outputs["new_state"]

    def case(self, kind: str) -> dict[str, Any]:
        """Return inputs from zeros on, and the first numbers of the answer of a graph to them."""
        names = signature_of(self._config, kind).inputs
        parts = [self._inputs(length) for length in _CASE_LENGTHS]
        sizes = {"batch": len(parts), "time": max(_CASE_LENGTHS)}
        if "lengths" in names:
            inputs = self._padded(parts, finite=True)
        elif "state" in names:
            inputs = self._named(torch.stack([part[0] for part in parts]))
        else:
            inputs = {
                **self._padded(parts, "_a", finite=True),
                **self._padded(parts[::-1], "_b", finite=True),
            }
        states = {}
        if "state" in names:
            states["state"] = self._network.layout.allocate(len(parts))
        answer = self._run({**inputs, **states})[answer_of(self._config)]
        return {
            "inputs": {name: value.tolist() for name, value in inputs.items()},
            "sizes": sizes,
            "answer": answer.flatten()[:CASE_NUMBERS].tolist(),
        }

    def _pairs(self) -> None:
        lengths = [length for length in _LENGTHS if length]
        sides = [[self._inputs(length) for length in order] for order in (lengths, lengths[::-1])]
        outputs = self._run({**self._padded(sides[0], "_a"), **self._padded(sides[1], "_b")})
        flat = [part for pair in zip(*sides, strict=True) for part in pair]
        sizes = [len(part) for part in flat]
        states = self._states(len(flat), zeros=True)
        hidden = self._network.hidden(torch.cat(flat), _batch(sizes, states))
        expected = self._network.compare(hidden, sizes)
        self._agree("logits", outputs["logits"], expected)

    def _expected(self, parts: list[Tensor], states: Tensor) -> list[Tensor | None]:
        """Return the network's outputs for each sequence, (steps, n); advances the states."""
        sizes = [len(part) for part in parts]
        hidden = self._network.hidden(torch.cat(parts), _batch(sizes, states))
        if self._config.outputs is not None:
            hidden = self._network.logits(hidden)
        return [rows if len(rows) else None for rows in torch.split(hidden, sizes)]

    def _compare(
        self, outputs: dict[str, Tensor], expected: list[Tensor | None], states: Tensor
    ) -> None:
        """Compare outputs of each sequence, and the end states."""
        name = next(n for n in ("logits", "values", "hidden") if n in outputs)
        every = outputs[name].dim() == 3
        for row, rows in enumerate(expected):
            if rows is None:
                continue
            steps, shown = len(rows), rows if every else rows[-1:]

            def ours(name: str, row: int = row, steps: int = steps) -> Tensor:
                return outputs[name][row, :steps] if every else outputs[name][row : row + 1]

            self._agree(name, ours(name), shown)
            if "scores" in outputs:
                self._agree("scores", ours("scores"), self._network.activation(shown))
            if "labels" in outputs:
                assert self._network.crf is not None
                path = self._network.crf.decode(ours("logits"))
                if not torch.equal(outputs["labels"][row][: len(rows)], path):
                    raise ExportError("the graph's labels differ from the network's")
        self._agree("new_state", outputs["new_state"], states)

    def _agree(self, name: str, ours: Tensor, theirs: Tensor) -> None:
        apart = (ours - theirs).abs() / max(1.0, float(theirs.abs().max()))
        if not bool((apart <= self._tolerance).all()):
            raise ExportError(
                f"the graph's {name} are up to {float(apart.max()):.3g} from the network's; the "
                f"limit is {self._tolerance:g}, so nothing was written"
            )

    def _run(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        shape = next(iter(inputs.values())).shape
        return self._session.run(inputs, dict(zip(("batch", "time"), shape, strict=False)))

    def _padded(
        self, parts: list[Tensor], end: str = "", finite: bool = False
    ) -> dict[str, Tensor]:
        """Return a batch of sequences as inputs of a graph.

        Padding is of random ids, or of NaN, which must reach no result; finite: of features.
        """
        longest = max(1, *(len(part) for part in parts))
        rows = []
        for part in parts:
            padding = self._inputs(longest - len(part))
            if padding.is_floating_point() and not finite:
                padding.fill_(torch.nan)
            rows.append(torch.cat((part, padding)))
        lengths = torch.tensor([len(part) for part in parts])
        return {**self._named(torch.stack(rows), end), f"lengths{end}": lengths}

    def _named(self, inputs: Tensor, end: str = "") -> dict[str, Tensor]:
        return {("features" if self._config.vocab_size is None else "ids") + end: inputs}

    def _inputs(self, steps: int) -> Tensor:
        """Return random ids (steps), or features (steps, n)."""
        if self._config.vocab_size is None:
            return torch.randn(steps, self._config.width, generator=self._random)
        return torch.randint(self._config.vocab_size, (steps,), generator=self._random)

    def _states(self, streams: int, zeros: bool = False) -> Tensor:
        """Return states that streams have after some random steps, or zeros."""
        states = self._network.layout.allocate(streams)
        if not zeros:
            for row in range(0, streams, 2):
                steps = self._inputs(2 + row)
                self._network.hidden(steps, _batch([len(steps)], states[row : row + 1]))
        return states


def _batch(sizes: list[int], states: Tensor) -> RaggedBatch:
    """Return sequences that read and write their own state rows."""
    rows = torch.arange(len(sizes))
    return RaggedBatch(torch.tensor([0, *sizes]).cumsum(0), states, rows, rows)
