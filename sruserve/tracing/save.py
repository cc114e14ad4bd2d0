"""`sruserve.save`: a live module as a model folder, whose answers are the module's own."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sruserve.model.errors import OptionError
from sruserve.model.folder import Model, save_model
from sruserve.model.folder_files import check_destination
from sruserve.model.heads.config import Pooling
from sruserve.model.names import Task
from sruserve.tracing import answers
from sruserve.tracing.errors import DifferentAnswers, TracingError
from sruserve.tracing.folder import describe
from sruserve.tracing.inputs import LENGTHS, InputKind, kinds_of
from sruserve.tracing.long import long_answers
from sruserve.tracing.trace import Failed, Traced, in_float64, on_cpu, trace
from sruserve.tracing.values import Lookup
from sruserve.tracing.vocabulary import Vocabulary, vocabulary_files


def save(
    module: nn.Module,
    folder: str | Path,
    task: Task,
    *,
    tokenizer: Vocabulary | None = None,
    lowercase: bool | None = None,
    labels: Sequence[str] | None = None,
    examples: Sequence[Any] | None = None,
    pooling: Pooling | Sequence[Pooling] | None = None,
    activation: Literal["softmax", "sigmoid", "none"] | None = None,
    output: int | str | None = None,
    names: Sequence[str] | None = None,
    units: Sequence[str] | None = None,
    quantiles: Sequence[float] | None = None,
    forecasts: bool = False,
    crf_window: int | None = None,
    tolerance: float = 1e-5,
) -> Model:
    """Write a trained module as a model folder that `sruserve serve` serves, and return it loaded.

    Finds the recurrent modules in `module` (`nn.LSTM`, `nn.GRU`, `nn.RNN`, `sru.SRU`, `sru.SRUpp`,
    QRNN, the LRN repository's RNN), whatever their names, runs `module` twice to record what it
    computes around them, and writes that as a folder. Then it runs both on `examples`, and writes
    nothing unless they agree. The module is evaluated in float32 on the CPU, and is not changed.

    module: its forward reads one tensor, (batch, steps) of ids or (batch, steps, features), or with
        the steps first if its recurrent module is not batch_first. Other parameters need defaults.
        It returns scores, (batch, outputs) or for every step, or what `decode` of a CRF returns.
        Modules that are compiled, or inside `DataParallel`, are unwrapped.
    folder: the model folder to write; an existing model folder is replaced.
    task: "classify", "tag", "generate", "encode" or "regress".
    tokenizer: a path of a tokenizer.json or of a JSON list, a `tokenizers.Tokenizer`, a list of
        words, characters or byte values in id order, or a dict from words or characters to ids.
        None: the model reads ids.
    lowercase: whether texts are put into lower case before they are read. None: no, but with a
        warning if no entry of a list has a capital letter.
    labels: names of the classes in id order. Two labels for one output are those of a binary logit.
    examples: inputs without the batch, (steps) or (steps, features), to compare both on. None:
        random ones of 1, 2, 7 and 33 steps. Inputs of 600 and 4,200 steps drawn from them are
        compared, too, and of more where forward compares the number of steps with a number. A
        module that reads one number a step, (batch, steps), needs examples of floats.
    pooling: what the folder's pooling must be, or several in order; None: whatever the module does.
    activation: what turns the module's scores into a reply: "softmax" unless stated, "sigmoid" for
        labels that do not exclude each other, "none" for the scores themselves.
    output: index or key of the scores, if the module returns several tensors.
    names, units, quantiles, forecasts: of a regressor's values, see docs/models.md.
    crf_window: of a CRF: the most steps of a stream whose labels may depend on later chunks, 1 to
        1,024. None: 128.
    tolerance: largest difference of an answer, or of its ratio to an example's largest one above 1.

    Raises `TracingError`, which names the operation that cannot be served and its line of source;
    `DifferentAnswers`; `OptionError` for an argument that does not fit; `FolderError`.

    >>> import tempfile, torch
    >>> class Sentiment(torch.nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.words = torch.nn.Embedding(100, 16)
    ...         self.reader = torch.nn.LSTM(16, 8, batch_first=True, bidirectional=True)
    ...         self.classes = torch.nn.Linear(16, 2)
    ...
    ...     def forward(self, ids: torch.Tensor) -> torch.Tensor:
    ...         _, (h, _) = self.reader(self.words(ids))
    ...         return self.classes(torch.cat([h[-2], h[-1]], 1))
    >>> folder = tempfile.mkdtemp()
    >>> model = save(Sentiment(), folder, "classify", labels=["bad", "good"])
    >>> model.config.head.pooling, model.config.head.final
    ('final', ('0.h',))
    """
    path = Path(folder)
    check_destination(path)
    ordered = {"labels": labels, "names": names, "units": units, "quantiles": quantiles}
    for name, value in ordered.items():
        _check_ordered(name, value)
    own = on_cpu(module)
    originals = [_example(each) for each in examples or ()]
    chosen = [example.float() if example.is_floating_point() else example for example in originals]
    traced, kind = _traced(own, chosen, tokenizer is not None, output)
    regression = {
        "names": names and tuple(names),
        "units": units and tuple(units),
        "quantiles": quantiles and tuple(quantiles),
        "forecasts": forecasts or None,
    }
    regression = {name: value for name, value in regression.items() if value is not None}
    if regression and task != "regress":
        raise OptionError(f"{', '.join(regression)}: for task regress only, not for task {task}")
    written = describe(traced, task, labels, pooling, activation, regression, crf_window)
    files = vocabulary_files(tokenizer, written.config.vocab_size, lowercase)
    inputs = chosen or [kind.draw(length, seed=length) for length in LENGTHS]
    by_step = written.config.answers_by_step
    theirs = _in_float64(module, traced, originals or inputs, by_step)
    if theirs is None:
        theirs = answers.module_answers(own, traced, inputs, by_step)

    long = [*long_answers(own, traced, inputs, by_step and traced.pooled is None)]

    def check(model: Model) -> None:
        answers.check(model, written, inputs, theirs, tolerance)
        answers.check_paths(model, own, traced, inputs)
        for example, answer in long:
            answers.check(model, written, [example], [answer], tolerance)

    case = answers.case(theirs, written, inputs)
    return save_model(path, written.config, written.tensors, files, case, check)


def _check_ordered(name: str, value: object) -> None:
    """Raise `OptionError` for a dict, whose keys may be in any order, a set, or one string."""
    if isinstance(value, (str, Mapping, Set)):
        raise OptionError(f"{name}: list them in the order of the module's outputs")


def _traced(
    module: nn.Module, examples: Sequence[Tensor], ids: bool, output: int | str | None
) -> tuple[Traced, InputKind]:
    """Trace a module with the first kind of input that it accepts."""
    failures: list[Failed] = []
    for kind in kinds_of(module, examples, ids):
        try:
            traced = trace(module, kind, output)
        except Failed as error:
            failures.append(error)
            continue
        if isinstance(origin := traced.outputs.source.origin, Lookup):
            kind = InputKind(vocabulary=len(origin.table))
        return traced, kind
    raise failures[0]


def _in_float64(
    module: nn.Module, traced: Traced, inputs: Sequence[Tensor], by_step: bool
) -> list[Tensor] | None:
    """Return the answers of a module that computes in float64 itself; None for any other one."""
    exact = in_float64(module)
    if exact is None:
        return None
    doubled = [example.double() if example.is_floating_point() else example for example in inputs]
    try:
        return answers.module_answers(exact, traced, doubled, by_step)
    except Exception:  # its forward turns something into float32, so it is no module of float64
        return None


def _example(value: Any) -> Tensor:
    tensor = torch.as_tensor(value).detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor if tensor.dtype is torch.float64 else tensor.float()
    elif tensor.dtype is not torch.bool:
        tensor = tensor.long()
    if not 1 <= tensor.dim() <= 1 + tensor.is_floating_point() or not len(tensor):
        raise OptionError(
            f"examples: one has shape {list(tensor.shape)}; each must be (steps) ids or (steps, "
            "features), without the batch"
        )
    return tensor


__all__ = ["DifferentAnswers", "TracingError", "save"]
