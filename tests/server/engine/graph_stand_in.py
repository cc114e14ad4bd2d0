"""Engines that decode in bursts as on a GPU, without one: a burst runs as it is launched.

Each step runs the network's own kernels and the engine's own sampler on the slots, so every token
and state must be that of an engine on the CPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.slots import WINDOW, Slots
from sruserve.model.folder import Model
from sruserve.model.runtime import Runtime
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.graph_decoder import GraphDecoder
from sruserve.server.engine.sampling.sampler import Sampler
from sruserve.server.engine.sampling.uniforms import uniforms


class StandInDecoder:
    """Steps over slots as the kernels of a GPU do it: a slot past its limit writes nothing."""

    def __init__(self, network: Runtime, states: Tensor) -> None:
        self._network, self._states = network, states

    def step(self, slots: Slots) -> None:
        rows = _taking_part(slots)
        if not len(rows):
            return
        source, target = slots.source[rows].clone(), slots.target[rows].clone()
        batch = RaggedBatch(torch.arange(len(rows) + 1), self._states, source, target)
        hidden = self._network.hidden(slots.tokens[rows].clone(), batch)
        self._pick(self._network.logits(hidden), slots, rows)

    def pick(self, logits: Tensor, slots: Slots) -> None:
        self._pick(logits, slots, _taking_part(slots))

    def _pick(self, logits: Tensor, slots: Slots, rows: Tensor) -> None:
        def column(name: str) -> list[Any]:
            values: list[Any] = getattr(slots, name)[rows].tolist()
            return values

        names = ("temperature", "top_p", "min_p", "penalty", "top_k")
        sampling = [
            Sampling(temperature=t, top_p=p, min_p=m, repetition_penalty=r, top_k=k)
            for t, p, m, r, k in zip(*map(column, names), strict=True)
        ]
        seed, choice, draw = (
            key[rows].numpy().view(np.uint64) for key in (slots.seed, slots.choice, slots.draw)
        )
        numbers = uniforms(seed, choice, draw, 1)
        windows = [[token for token in ring if token >= 0] for ring in column("window")]
        tokens = Sampler(sampling, windows, numbers)(logits, 0)
        slots.tokens[rows] = tokens
        slots.history[slots.position[rows], rows] = tokens
        slots.window[rows, slots.draw[rows] % WINDOW] = tokens
        slots.position[rows] += 1
        slots.draw[rows] += 1
        slots.target[slots.position >= slots.limits] = -1


def _taking_part(slots: Slots) -> Tensor:
    return torch.nonzero(slots.position < slots.limits).squeeze(1)


@contextmanager
def on_graphs(model: Model) -> Iterator[list[str]]:
    """Let engines of `model` that start meanwhile decode in bursts.

    Yields what they do: "launch" and "collect".
    """
    events: list[str] = []
    launch, collect = GraphDecoder.launch, GraphDecoder.collect

    def noted_launch(self: GraphDecoder, *args: Any) -> Any:
        events.append("launch")
        return launch(self, *args)

    def noted_collect(self: GraphDecoder, *args: Any) -> Any:
        events.append("collect")
        return collect(self, *args)

    with (
        patch.object(
            model.network, "decoder", lambda states: StandInDecoder(model.network, states)
        ),
        patch.object(GraphDecoder, "launch", noted_launch),
        patch.object(GraphDecoder, "collect", noted_collect),
    ):
        yield events
