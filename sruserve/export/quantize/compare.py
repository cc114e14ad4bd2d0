"""Compare two models on held-out data: bits per character, labels, speed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from time import perf_counter

import torch
from torch import Tensor

from sruserve.export.quantize.texts import HeldOut, LabelledText, encode
from sruserve.model.folder import Model
from sruserve.model.folder_files import WEIGHTS_FILE
from sruserve.model.verification.answers import outputs

_PIECE = 4096  # ids of a long text that are scored at a time
_TEXTS = 32  # texts of a batch
_READ_STEPS, _DECODE_STEPS = 4096, 128  # of a measurement of speed
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What a model reaches. A speed's unit is steps per second; a language model's, characters.

    file_bytes: the size of the weights' file. reading: whole inputs. decoding: one step at a time
    of one stream, 0 for a model that cannot stream. labels: those of the texts.
    """

    file_bytes: int
    reading: float
    decoding: float
    bits_per_character: float | None
    labels: tuple[str, ...]
    correct: int


def compare(
    before: Model, after: Model, held_out: HeldOut, step: Callable[[str], None] = lambda _: None
) -> tuple[Figures, Figures]:
    """Measure both models on the same data, which fits them: see `HeldOut.check_fit`.

    step: called with what is done, as it begins.
    """
    results: list[tuple[float | None, tuple[str, ...]]] = []
    for name, model in (("before", before), ("after", after)):
        step(f"evaluating {name}")
        bits = None
        if held_out.content is not None:
            bits = _bits_per_character(model, encode(model, held_out.content))
        results.append((bits, _labels(model, held_out.labelled)))
    step("measuring speeds")
    inputs = _inputs(before, held_out)
    per_step = _characters_per_step(before, inputs)
    speeds = _speeds((before, after), inputs)
    old, new = (
        Figures(
            (model.path / WEIGHTS_FILE).stat().st_size,
            reading * per_step,
            decoding * per_step,
            bits,
            labels,
            sum(line.label == label for line, label in zip(held_out.labelled, labels, strict=True)),
        )
        for model, (bits, labels), (reading, decoding) in zip(
            (before, after), results, speeds, strict=True
        )
    )
    return old, new


def _bits_per_character(model: Model, ids: Tensor) -> float:
    """Score all ids with a predecessor, as a request to /v1/score does."""
    assert model.codec is not None
    network, states = model.network, model.network.layout.allocate(1)
    characters = int(model.codec.characters[ids[1:].numpy()].sum())
    nats = 0.0
    for first in range(0, len(ids) - 1, _PIECE):
        own, following = ids[first : first + _PIECE], ids[first + 1 : first + _PIECE + 1]
        (hidden,) = outputs(network, [own], states, [[len(own)]])
        assert hidden is not None
        scores = network.log_probs(network.logits(hidden[: len(following)]))
        nats -= float(scores.gather(1, following[:, None]).double().sum())
    return nats / log(2) / characters


def _labels(model: Model, texts: Sequence[LabelledText]) -> tuple[str, ...]:
    """Classify texts in batches, as the server does."""
    if not texts:
        return ()
    assert model.codec is not None
    frame = model.codec.frame
    numbers: list[int] = []
    for first in range(0, len(texts), _TEXTS):
        parts = []
        for text in texts[first : first + _TEXTS]:
            ids = encode(model, text.text)
            parts.append(ids if frame is None else torch.from_numpy(frame.around(ids.numpy())))
        states = model.network.layout.allocate(len(parts))
        ends = outputs(model.network, parts, states, [[len(part) for part in parts]], last=True)
        rows = torch.cat([end for end in ends if end is not None])
        numbers += model.network.logits(rows).argmax(1).tolist()
    return tuple(model.labels[number] for number in numbers)


def _inputs(model: Model, held_out: HeldOut) -> Tensor:
    """Return the inputs of a measurement of speed: held-out ids, or random ones."""
    config, random = model.config, torch.Generator().manual_seed(0)
    if held_out.content is not None:
        return encode(model, held_out.content)[:_READ_STEPS]
    if config.vocab_size is None:
        return torch.randn(_READ_STEPS, config.width, generator=random)
    return torch.randint(config.vocab_size, (_READ_STEPS,), generator=random)


def _characters_per_step(model: Model, inputs: Tensor) -> float:
    if model.config.task != "generate" or model.codec is None:
        return 1.0
    return float(model.codec.characters[inputs.numpy()].mean())


def _speeds(models: Sequence[Model], inputs: Tensor) -> list[tuple[float, float]]:
    """Return the best speeds of each model, in steps per second; the models take turns."""
    best = [[float("inf"), float("inf")] for _ in models]
    for model in models:
        model.network.warm_up()
    for _ in range(_ROUNDS):
        for model, times in zip(models, best, strict=True):
            begin = perf_counter()
            _read(model, inputs)
            times[0] = min(times[0], (perf_counter() - begin) / len(inputs))
            if not model.network.supports_streaming:
                continue
            begin = perf_counter()
            _decode(model, inputs[:_DECODE_STEPS])
            times[1] = min(times[1], (perf_counter() - begin) / len(inputs[:_DECODE_STEPS]))
    return [(1 / reading, 1 / decoding) for reading, decoding in best]


def _read(model: Model, inputs: Tensor) -> None:
    outputs(model.network, [inputs], model.network.layout.allocate(1), [[len(inputs)]])


def _decode(model: Model, inputs: Tensor) -> None:
    network, states = model.network, model.network.layout.allocate(1)
    for place in range(len(inputs)):
        (hidden,) = outputs(network, [inputs[place : place + 1]], states, [[1]])
        if model.config.task == "generate" and hidden is not None:
            network.logits(hidden)
