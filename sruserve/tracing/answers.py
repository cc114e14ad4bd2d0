"""Answers of a module and of its folder to the same inputs, and their difference."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sruserve.kernels import single
from sruserve.model.folder import Model
from sruserve.tracing.crf import crfs_of, without_decoding
from sruserve.tracing.errors import DifferentAnswers, TracingError
from sruserve.tracing.folder import Written
from sruserve.tracing.recorder import evaluating
from sruserve.tracing.trace import Traced

_CASE_NUMBERS = 1 << 22  # of all answers in a saved case


def module_answers(
    module: nn.Module, traced: Traced, examples: Sequence[Tensor], by_step: bool
) -> list[Tensor]:
    """Return the module's own result for each example: (steps, outputs), or (1, outputs).

    examples: (steps) or (steps, features). by_step: also of a module that only returns the last
    step's; it then runs on the beginnings of each example, too.
    """

    def answer(example: Tensor) -> Tensor:
        result = module(example.unsqueeze(0 if traced.batch_first else 1))
        if traced.output is not None:
            result = result[traced.output]
        return _by_step(result.detach().float(), traced, len(example))

    with evaluating(module), without_decoding(crfs_of(module)):
        if not by_step or traced.pooled is None:
            return [answer(example) for example in examples]
        return [
            torch.cat([answer(example[: end + 1]) for end in range(len(example))])
            for example in examples
        ]


def folder_answers(model: Model, written: Written, example: Tensor) -> Tensor:
    """Return what the folder's network computes where the module returns its result."""
    network = model.network
    hidden = _hidden(model, example)
    if model.config.outputs is None:
        return hidden.float()
    logits = network.logits(hidden)
    if written.returned == "log_softmax":
        return network.log_probs(logits)
    if written.returned == "logits":
        return logits[:, 1:] if written.added else logits
    exclusive = written.added or written.returned == "softmax"
    scores = torch.softmax(logits, 1) if exclusive else torch.sigmoid(logits)
    return scores[:, 1:] if written.added else scores


def check(
    model: Model,
    written: Written,
    examples: Sequence[Tensor],
    answers: Sequence[Tensor],
    tolerance: float,
) -> None:
    """Raise `DifferentAnswers` unless the folder's answers are the module's.

    answers: of `module_answers`. tolerance: the largest difference, relative to the largest answer
    of an example if that exceeds 1.
    """
    for example, theirs in zip(examples, answers, strict=True):
        ours = folder_answers(model, written, example)
        if len(theirs) == 1:
            ours = ours[-1:]
        if not theirs.isfinite().all():
            raise DifferentAnswers(
                f"the module's own answer to the example of {len(example)} steps is not finite"
            )
        if ours.shape != theirs.shape:
            raise DifferentAnswers(
                f"the module answers an example of {len(example)} steps with numbers of shape "
                f"{list(theirs.shape)}, the folder with {list(ours.shape)}"
            )
        largest = float((ours - theirs).abs().max().nan_to_num(torch.inf))
        allowed = tolerance * max(1.0, float(theirs.abs().max()))
        if largest > allowed:
            raise DifferentAnswers(
                f"the folder's answers differ from the module's by {largest:.3g} for the example "
                f"of {len(example)} steps; {allowed:.3g} is allowed. The module does something "
                "that its recorded operations do not show"
            )


def check_paths(
    model: Model, module: nn.Module, traced: Traced, examples: Sequence[Tensor]
) -> None:
    """Raise `DifferentAnswers` unless the folder chooses the labels that the module's CRF does."""
    crf = model.network.crf
    if crf is None:
        return
    with evaluating(module):
        theirs = [module(example.unsqueeze(1 - traced.batch_first)) for example in examples]
    for example, paths in zip(examples, theirs, strict=True):
        scores = model.network.logits(_hidden(model, example))
        ours = [crf.decode(scores).tolist()]
        if traced.output is not None:
            paths = paths[traced.output]
        if paths != ours:
            raise DifferentAnswers(
                f"the folder's labels differ from those that {type(traced.crf).__name__}.decode "
                f"returns for the example of {len(example)} steps"
            )


def case(
    results: Sequence[Tensor], written: Written, examples: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of a saved case: the examples, padded, and the module's answers.

    results: of `module_answers`.
    """
    config = written.config
    outputs = config.outputs or config.rnn.output_size
    kept = 0
    while kept < len(examples) and (
        not kept or max(map(len, examples[: kept + 1])) * (kept + 1) * outputs <= _CASE_NUMBERS
    ):
        kept += 1
    examples, answers = examples[:kept], [_served(each, written) for each in results[:kept]]
    padded = nn.utils.rnn.pad_sequence(list(examples))
    if config.vocab_size is None and padded.dim() < 3:
        padded = padded.unsqueeze(2)
    tensors = {
        "tokens" if config.vocab_size is not None else "x": padded.contiguous(),
        "lengths": torch.tensor([len(example) for example in examples]),
    }
    if config.outputs is None:
        return tensors | {"h": nn.utils.rnn.pad_sequence(answers).contiguous()}
    kind = "values" if config.task == "regress" else "probabilities"
    if config.head.crf:
        kind = "logits"
    if not config.answers_by_step:
        return tensors | {kind: torch.cat(answers)}
    return tensors | {kind: nn.utils.rnn.pad_sequence(answers).contiguous()}


def _hidden(model: Model, example: Tensor) -> Tensor:
    network = model.network
    if example.is_floating_point() and example.dim() == 1:
        example = example.unsqueeze(1)
    states = network.layout.allocate(1, network.device)
    return network.hidden(example, single(states, len(example))).cpu()


def _served(answer: Tensor, written: Written) -> Tensor:
    """Return a module's result as the server replies it."""
    config = written.config
    if written.added:
        one = answer if written.returned == "sigmoid" else torch.sigmoid(answer)
        return torch.cat([1 - one, one], 1)
    if written.returned == "log_softmax":
        return answer.exp()
    if written.returned != "logits" or config.outputs is None or config.head.crf:
        return answer
    scoring = config.activation
    if scoring == "none":
        return answer
    return torch.softmax(answer, 1) if scoring == "softmax" else torch.sigmoid(answer)


def _by_step(result: Tensor, traced: Traced, steps: int) -> Tensor:
    """Return a result of one input as (steps, outputs), or (1, outputs) if it is pooled."""
    rows = 1 if traced.pooled is not None else steps
    axes = traced.axes
    if result.numel() != rows * traced.rows.width:
        raise TracingError(
            f"the module returns {result.numel()} numbers for one input of {steps} steps, and "
            f"{rows * traced.rows.width} in a batch: it depends on the batch's size"
        )
    if "F" in axes and result.dim() == len(axes):
        place = axes.index("F")
        return result.movedim(place, -1).reshape(rows, traced.rows.width)
    if "F" in axes and axes[-1] != "F":
        raise TracingError(
            "the module's result has other dimensions for one input than for a batch"
        )
    return result.reshape(rows, traced.rows.width)
