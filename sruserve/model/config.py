"""The description of a network in `config.json`."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sruserve.model.cells import FAMILIES
from sruserve.model.cells.stack import MAX_WIDTH, StackConfig, Width
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.errors import ConfigError
from sruserve.model.files import read_regular
from sruserve.model.heads.config import HeadConfig, Scoring
from sruserve.model.heads.regression import Regression
from sruserve.model.heads.row_layers import RowLayers, output_width, widest
from sruserve.model.json_names import RepeatedName, load_json
from sruserve.model.names import DType, Task
from sruserve.model.reader.config import ReaderConfig
from sruserve.model.state import StateLayout

FORMAT_VERSION = 1  # the newest format of config.json that this package reads and writes
LABELLED = ("classify", "pair", "tag")
_SHOWN = 8  # problems in a message
_MAX_LISTED = 1000  # each takes some microseconds, and 2 KB
_LARGEST_FILE = 4 << 20  # bytes: more than 100,000 labels
_LONGEST_LABEL = 256  # bytes
_LABEL_BYTES = 4 << 20  # of all labels: as many as fit in the file
_LABEL_NUMBER = 64  # bytes of a label that count as one number of a reply
_LONGEST_DESCRIPTION = 300  # characters
_LARGEST_STATE = 1 << 30  # bytes, of one stream
_ARCHITECTURES: dict[Task, str] = {
    "classify": "ForSequenceClassification",
    "pair": "ForSequencePairClassification",
    "tag": "ForTokenClassification",
    "regress": "ForRegression",
    "generate": "ForCausalLM",
    "encode": "Model",
    "answer": "ForQuestionAnswering",
}


def architecture(rnn: StackConfig, task: Task) -> str:
    """Return a network's name in `architectures`, such as SRUForCausalLM."""
    return type(rnn).__name__.removesuffix("Config") + _ARCHITECTURES[task]


class _Format(BaseModel):
    """The only fields of `config.json` that every version of this package understands."""

    format_version: PositiveInt = Field(1, description="Format of the file; absent means 1.")
    task: Any = None


def is_translation(content: bytes) -> bool:
    """Whether a `config.json` describes a translation system; raises pydantic's error."""
    return bool(_Format.model_validate_json(content).task == "translate")


def _check_description(text: str) -> str:
    """Return a description, or raise ValueError: it is shown as one line."""
    if not text.isprintable() or not text.strip():
        raise ValueError("must be one line of text, without control characters")
    if len(text) > _LONGEST_DESCRIPTION:
        raise ValueError(
            f"has {len(text):,} characters; the limit is {_LONGEST_DESCRIPTION}: shorten it"
        )
    return text


Description = Annotated[str, AfterValidator(_check_description)]


class ModelConfig(BaseModel):
    """A complete network: its embedding, its recurrent stack, its head and its task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Not written while it is 1, so folders of this format stay readable for older versions.
    format_version: PositiveInt = Field(1, exclude=True)
    architectures: Annotated[tuple[str, ...], Field(fail_fast=True)]
    model_type: str = Field("sru", description="The family of its recurrent layers.")
    task: Task
    description: Description | None = Field(
        None, description="What the model does, in a sentence for people; changes no result."
    )
    dtype: DType = Field("float32", description="Compute dtype unless the operator sets another.")
    weights: Literal["int8"] | None = Field(
        None, description="int8: large weights are stored so, with scales; None: as floats."
    )
    vocab_size: PositiveInt | None = Field(None, description="None: inputs are features, not ids.")
    id2label: dict[int, str] = Field(default_factory=dict)
    input_width: Width | None = Field(
        None,
        description="Width of the embedding's rows, or of the features of a step; None: the "
        "stack's input_size.",
    )
    input_layers: RowLayers = Field(
        (), description="Layers between the embedding, or the features, and the stack."
    )
    rnn: SerializeAsAny[StackConfig]
    embedding: EmbeddingConfig = EmbeddingConfig()
    head: HeadConfig = HeadConfig()
    regression: Regression | None = Field(None, description="For task regress: its outputs.")
    reader: ReaderConfig | None = Field(
        None, description="For task answer: what is around its encoders; rnn is the document's."
    )

    @field_validator("model_type")
    @classmethod
    def _is_a_family(cls, model_type: str) -> str:
        if model_type not in FAMILIES:
            raise ValueError(f"must be one of {', '.join(FAMILIES)}")
        return model_type

    @field_validator("rnn", mode="before")
    @classmethod
    def _is_of_its_family(cls, rnn: Any, info: ValidationInfo) -> Any:
        family = FAMILIES.get(info.data.get("model_type", ""))
        if family is None:
            raise ValueError("cannot be read without a valid model_type")
        if isinstance(rnn, family):
            return rnn
        if isinstance(rnn, StackConfig):
            raise ValueError(f"is of the family {rnn.family}, but model_type is another one")
        try:
            return family.model_validate(rnn)
        except ValidationError as error:
            raise ValueError(explain(error)) from error

    @field_validator("id2label")
    @classmethod
    def _has_distinct_short_labels(cls, id2label: dict[int, str]) -> dict[int, str]:
        classes: dict[str, int] = {}
        for number, label in id2label.items():
            if (other := classes.setdefault(label, number)) != number:
                raise ValueError(
                    f"classes {other} and {number} have the same label, {label[:40]!r}: give each "
                    "one its own"
                )
            if (size := len(label.encode())) > _LONGEST_LABEL:
                raise ValueError(
                    f"label {number} has {size:,} bytes; the limit is {_LONGEST_LABEL}: shorten it"
                )
        if (size := sum(len(label.encode()) for label in classes)) > _LABEL_BYTES:
            raise ValueError(
                f"the labels have {size:,} bytes together; the limit is {_LABEL_BYTES:,}: "
                "shorten them"
            )
        return id2label

    @model_validator(mode="after")
    def _fits_its_task(self) -> Self:
        if self.task in LABELLED and sorted(self.id2label) != list(range(len(self.id2label))):
            raise ValueError("id2label must name every class, with ids from 0 on")
        if self.task in LABELLED and not self.id2label:
            raise ValueError(f"task {self.task} needs id2label")
        if (self.task == "regress") is not (self.regression is not None):
            raise ValueError("task regress and the field regression go together")
        if (self.task == "answer") is not (self.reader is not None):
            raise ValueError("task answer and the field reader go together")
        fed_back = self.regression is not None and self.regression.forecasts
        if fed_back and (self.vocab_size is not None or len(self.names) != self.width):
            raise ValueError("forecasts must have a value for each feature of a step, in order")
        if self.task == "generate" and self.vocab_size is None:
            raise ValueError("task generate needs vocab_size")
        if self.task == "generate" and self.rnn.not_streamable_because:
            raise ValueError(f"this network cannot generate: {self.rnn.not_streamable_because}")
        if (needed := StateLayout(self.rnn.states()).nbytes) > _LARGEST_STATE:
            raise ValueError(
                f"a stream's state would take {needed:,} bytes; the limit is {_LARGEST_STATE:,}: "
                "lower the window"
            )
        if self.task in LABELLED and len(self.id2label) == 1 and self.head.activation == "softmax":
            raise ValueError(
                "the softmax of one label is always 1: name both labels of a binary logit, or set "
                "activation to sigmoid"
            )
        self.embedding.check_vocabulary(self.vocab_size)
        if self.reader is not None:
            self._check_reader(self.reader)
        elif (width := output_width(self.input_layers, self.width)) != self.rnn.input_size:
            raise ValueError(
                f"input_layers turn a width of {self.width} into {width}, but the stack's "
                f"input_size is {self.rnn.input_size}"
            )
        self.head.check(self.task, self.outputs, self.rnn, self.embedding, self.width)
        if (width := self._widest_row) > MAX_WIDTH:
            raise ValueError(
                f"a step would have a row of {width:,} numbers; the limit is {MAX_WIDTH:,}"
            )
        if self.head.pooling != "last" and self.regression and self.regression.steps == "every":
            raise ValueError("a regressor of every step has no pooling")
        return self

    def _check_reader(self, reader: ReaderConfig) -> None:
        """Raise ValueError unless a reader's parts fit the network, and nothing else is in it."""
        reader.check(self.rnn, self.width, self.vocab_size)
        if self.input_layers or self.head != HeadConfig():
            raise ValueError("task answer has no input_layers and no head")
        if self.weights is not None:
            raise ValueError("the weights of task answer cannot be int8")

    @property
    def _widest_row(self) -> int:
        """The largest width of a row that all steps of an input may have; raises ValueError.

        A stack that streams computes its own rows for a few steps at a time.
        """
        pooled = self.head.pooled_width(self.task, self.rnn)
        layers = (*self.input_layers, *self.head.attention, *self.head.layers)
        inner = 0 if self.not_streamable_because is None else self.rnn.widest
        outer = max(self.width, self.rnn.input_size, self.rnn.output_size)
        mixed = self.head.experts * (self.head.latent_size or pooled)
        return max(outer, inner, pooled, mixed, widest(layers))

    @property
    def not_streamable_because(self) -> str | None:
        """Why the network cannot stream, as a clause "it …"; None if it can."""
        if self.task == "pair":
            return "it compares two whole inputs"
        if self.task == "answer":
            return "it reads a whole document with a whole question"
        if self.head.attention_final:
            return "its attention reads the final outputs of an input"
        return self.rnn.not_streamable_because

    @property
    def width(self) -> int:
        """Width of the embedding's rows, or number of features of a step."""
        return self.input_width or self.rnn.input_size

    @property
    def outputs(self) -> int | None:
        """Number of scores of the head for a step; None without a head."""
        if self.task in LABELLED:
            return len(self.id2label)
        if self.regression is not None:
            return self.regression.outputs
        return self.vocab_size if self.task == "generate" else None

    @property
    def answers_by_step(self) -> bool:
        """Whether a reply has a result for every step, not one for the whole input."""
        every = self.regression is not None and self.regression.steps == "every"
        return every or self.task in ("tag", "generate", "encode")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of a regressor's values."""
        return () if self.regression is None else self.regression.names

    @property
    def activation(self) -> Scoring:
        """What turns the head's scores into what a reply shows."""
        return "none" if self.task == "regress" else self.head.activation

    @cached_property
    def layout(self) -> StateLayout:
        """The entries of a stream's state row."""
        pooled = self.head.states(self.task, self.rnn.output_size)
        return StateLayout([*self.rnn.states(), *pooled])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.id2label[i] for i in range(len(self.id2label)))

    @cached_property
    def label_numbers(self) -> int:
        """Size of a reply with a score for each label, in numbers."""
        return sum(1 + len(label.encode()) // _LABEL_NUMBER for label in self.labels)

    @cached_property
    def longest_label_numbers(self) -> int:
        """Size of the longest label in a reply, in numbers."""
        return max((len(label.encode()) // _LABEL_NUMBER for label in self.labels), default=0)


def read_config(path: Path) -> ModelConfig:
    """Read `config.json`, or raise `ConfigError` that names every invalid field."""
    return parse_config(read_config_file(path), path)


def read_config_file(path: Path) -> bytes:
    """Return the content of a `config.json`, or raise `ConfigError`."""
    try:
        return read_regular(path, _LARGEST_FILE)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def parse_config(content: bytes, source: object) -> ModelConfig:
    """Parse a `config.json`; `source` is its name in errors. Raises `ConfigError`."""
    try:
        check_format(content, source)
        if is_translation(content):
            raise ConfigError(
                f"{source} describes a translation system (task translate), which this command "
                "does not take: serve it, or use `sruserve inspect`"
            )
        return ModelConfig.model_validate_json(content)
    except ValidationError as error:
        raise ConfigError(f"{source} is not a valid config: {explain(error)}") from error


def check_format(content: bytes, source: object) -> None:
    """Raise `ConfigError` for a `config.json` of a newer version, or pydantic's error.

    Raises `ConfigError` for repeated names, too.
    """
    version = _Format.model_validate_json(content).format_version
    try:
        load_json(content)
    except RepeatedName as repeated:
        raise ConfigError(f"{source} {repeated}: remove one of them") from None
    if version > FORMAT_VERSION:
        raise ConfigError(
            f"{source} was written by a newer sruserve (format version {version}; this one "
            f"reads up to {FORMAT_VERSION}): upgrade sruserve"
        )


def explain(error: ValidationError) -> str:
    """Return Pydantic's errors in one line, `field: problem; …`, at most `_SHOWN` of them."""
    findings = [f"{field[:80] or 'value'}: {problem[:200]}" for field, problem in _findings(error)]
    more = [f"and {len(findings) - _SHOWN} more"] if len(findings) > _SHOWN else []
    return "; ".join(findings[:_SHOWN] + more)


def _findings(error: ValidationError, prefix: str = "") -> list[tuple[str, str]]:
    if (count := error.error_count()) > _MAX_LISTED:
        return [(prefix.rstrip("."), f"{count:,} problems, probably unknown fields")]
    findings = []
    for line in error.errors(include_url=False, include_input=False):
        field = prefix + ".".join(map(str, line["loc"]))
        cause = getattr(line.get("ctx", {}).get("error"), "__cause__", None)
        if isinstance(cause, ValidationError):
            findings += _findings(cause, f"{field}.")
        else:
            findings.append((field, line["msg"]))
    return findings
