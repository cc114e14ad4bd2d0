"""Encode the chunks of sources that are translated while they arrive."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sruserve.model.translation.memory import Memory
from sruserve.model.translation.translator import Translator
from sruserve.server.engine.translation.sentence import Sentence


def read_chunks(translator: Translator, sentences: Sequence[Sentence]) -> list[Memory]:
    """Encode the chunks of sentences; their encoders' states become those after them.

    Returns for each the rows of all ids that have arrived, and the state of its decoder; zeros if
    its first token cannot be written yet.
    """
    reader = _Reader(translator, sentences)
    heads = [sentence.source[: _before_start(sentence)] for sentence in sentences]
    reader.read([torch.from_numpy(head) for head in heads])
    started = translator.start(reader.states)
    tails = zip(sentences, heads, strict=True)
    reader.read([torch.from_numpy(sentence.source[len(head) :]) for sentence, head in tails])
    memories = []
    for place, sentence in enumerate(sentences):
        before = sentence.item.before
        assert before is not None
        sentence.encoder = reader.states[place]
        state = torch.from_numpy(before.decoder) if len(before.decoder) else started[place]
        memories.append(Memory((torch.cat(reader.rows[place]),), state[None]))
    return memories


def _before_start(sentence: Sentence) -> int:
    """The ids of a chunk that are read before the decoder's start."""
    before = sentence.item.before
    assert before is not None
    return 0 if len(before.decoder) else max(0, before.wait_k - len(before.rows))


class _Reader:
    """The encoders of some sentences.

    states: (sentences, encoder_width). rows: the parts of each sentence's memory.
    """

    def __init__(self, translator: Translator, sentences: Sequence[Sentence]) -> None:
        self._translator = translator
        befores = [sentence.item.before for sentence in sentences]
        assert None not in befores
        states = [torch.from_numpy(before.encoder) for before in befores if before is not None]
        self.states = torch.stack(states)
        self.rows = [[torch.from_numpy(before.rows)] for before in befores if before is not None]

    def read(self, chunks: Sequence[Tensor]) -> None:
        """Encode the next ids of each sentence, which may be none."""
        places = [place for place, chunk in enumerate(chunks) if len(chunk)]
        if not places:
            return
        read = self._translator.read([chunks[i] for i in places], self.states[places])
        self.states[places] = read.states
        for place, rows in zip(places, read.rows, strict=True):
            self.rows[place].append(rows)
