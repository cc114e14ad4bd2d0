"""Attention between one document and one question, alone with each other."""

import torch
from torch import Tensor

from sruserve.model.cells.stack import Builder

_SCORES = 1 << 20  # of a block: 4 MiB


def aligned(keys: Tensor, question_keys: Tensor, question: Tensor, builder: Builder) -> Tensor:
    """Return the aligned question embedding of each word of a document (Chen et al. 2017, 3.2).

    a_ij = softmax_j(relu(W e(d_i)) . relu(W e(q_j))), and f(d_i) = sum_j a_ij e(q_j).

    keys: (words, width), the document's. question_keys, question: (question words, width).

    Returns (words, width). Each number is one chain of additions over the question's words.
    """
    scores, mix = builder.linear(question_keys), builder.linear(question.T)
    rows = max(1, _SCORES // len(question))
    blocks = [
        mix(scores(block, torch.float32).softmax(1).to(block.dtype))
        for block in torch.split(keys, rows)
    ]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def bilinear(words: Tensor, queries: Tensor, builder: Builder) -> Tensor:
    """Return the scores x_i . (W q + b) of each word of a document, (words, queries), float32.

    words: (words, width), its encoder's outputs. queries: (queries, width), W q + b.
    """
    return builder.linear(queries)(words, torch.float32)
