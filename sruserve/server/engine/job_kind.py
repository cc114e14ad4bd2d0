"""The kinds of jobs, and what each means to the engine, to metrics and to traces."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class _Traits:
    last_step: bool = False
    pairs: bool = False
    predicts: bool = False
    samples: bool = False
    quick: bool = False
    operation: str | None = None


class JobKind(Enum):
    """The work of a job.

    COMPARE and ANSWER read pairs of sequences. TAG, REGRESS_STEPS and ENCODE answer for each step.
    EMBED answers with the row that the head of a classifier reads, or an encoder's last output.
    TRANSLATE is the job of a translation system.

    reads_last_step: the result needs the output of the last step only.
    reads_pairs: each input is two sequences, one after the other.
    predicts: the job predicts next tokens: the stream's last token then stays unconsumed.
    samples: the job samples tokens after its inputs.
    quick: a job of few inputs may be one short step, which the caller's event loop may compute.
    operation: OpenTelemetry's name of the operation, or else the name of the task.
    """

    CLASSIFY = "classify", _Traits(last_step=True, quick=True)
    COMPARE = "compare", _Traits(pairs=True)
    ANSWER = "answer", _Traits(pairs=True)
    TAG = "tag", _Traits(quick=True)
    REGRESS = "regress", _Traits(last_step=True, quick=True)
    REGRESS_STEPS = "regress_steps", _Traits()
    ENCODE = "encode", _Traits(quick=True, operation="embeddings")
    EMBED = "embed", _Traits(last_step=True, quick=True, operation="embeddings")
    SCORE = "score", _Traits(predicts=True, quick=True)
    GENERATE = (
        "generate",
        _Traits(last_step=True, predicts=True, samples=True, operation="text_completion"),
    )
    TRANSLATE = "translate", _Traits()

    # Attributes, since a property would be a call for each sequence of each step.
    reads_last_step: bool
    reads_pairs: bool
    predicts: bool
    samples: bool
    quick: bool
    operation: str

    def __new__(cls, value: str, traits: _Traits) -> "JobKind":
        """Make a kind whose value is its name in requests."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.reads_last_step, kind.reads_pairs = traits.last_step, traits.pairs
        kind.predicts, kind.samples, kind.quick = traits.predicts, traits.samples, traits.quick
        kind.operation = traits.operation or value
        return kind

    @classmethod
    def reading(cls, task: str) -> "JobKind":
        """The kind of job that reads inputs into the state of a model of this task."""
        return cls.SCORE if task == "generate" else _BY_NAME[task]


_BY_NAME = {kind.value: kind for kind in JobKind}
