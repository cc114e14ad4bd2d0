"""A document reader's config: what describes a word, and the stack that reads a question."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from sruserve.model.cells.stack import MAX_LAYERS, Shapes, StackConfig, StackConfigT, Width

COLUMNS = ("id", "in_question", "in_question_uncased", "in_question_lemma", "tf", "pos", "ner")
"""The numbers of a word's row: its id, its features, and the ids of its tags."""

IN_QUESTION, FREQUENCY, TAGS = COLUMNS[1:4], COLUMNS[4], COLUMNS[5:]
MAX_FEATURES = 1 << 12
MAX_VOCABULARY = 1 << 24  # ids travel in float32, which holds these exactly
_LONGEST_NAME = 256  # bytes

Part = Literal["words", "aligned", "features", "pos", "ner"]
Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_FEATURES, fail_fast=True)]


class TagTable(BaseModel):
    """An embedding of one of the tags that a caller gives with each word."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: Names = Field(min_length=1, description="The tags, in id order.")
    size: Width = Field(description="Width of a tag's row.")

    @model_validator(mode="after")
    def _is_distinct(self) -> Self:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("two tags have the same label: give each its own")
        return self


class ReaderConfig(BaseModel):
    """The parts of the document reader of DrQA (Chen et al. 2017) around its two encoders.

    Both encoders are the stack of `ModelConfig.rnn`, whose sizes are those of the document's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question_layers: PositiveInt = Field(
        le=MAX_LAYERS, description="Number of layers of the question's encoder."
    )
    question_merge: Literal["self_attn", "avg"] = Field(
        "self_attn",
        description="How the question's outputs become one row: their mean, weighted by the "
        "softmax of a learned score, or equally.",
    )
    inputs: Annotated[tuple[Part, ...], Field(min_length=1, max_length=5)] = Field(
        ("words", "aligned", "features"),
        description="What a word of the document is described by, side by side: its embedding, "
        "its aligned question embedding, its features, and embeddings of its tags.",
    )
    features: Names = Field(
        (),
        description="The features of a word, in order: in_question, in_question_uncased, "
        "in_question_lemma, tf, pos=TAG and ner=TAG.",
    )
    pos: TagTable | None = Field(None, description="Embedding of part-of-speech tags.")
    ner: TagTable | None = Field(None, description="Embedding of named-entity tags.")
    uncased: bool = Field(
        False, description="Words are compared in lower case, as the tokenizer looks them up."
    )
    max_answer_words: int = Field(15, ge=1, le=1024, description="Most words of an answer.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.inputs)) < len(self.inputs) or "words" not in self.inputs:
            raise ValueError("inputs must name words, and each part at most once")
        for part, has in (("features", self.features), ("pos", self.pos), ("ner", self.ner)):
            if (part in self.inputs) is not bool(has):
                raise ValueError(f"the part {part} of inputs and the field {part} go together")
        if len(set(self.features)) < len(self.features):
            raise ValueError("features names one of them twice")
        for name in self.features:
            known = name in (*IN_QUESTION, FREQUENCY)
            if not known and not name.startswith(tuple(f"{tag}=" for tag in TAGS)):
                raise ValueError(
                    f"feature {name[:40]!r} is unknown: use {', '.join(IN_QUESTION)}, "
                    f"{FREQUENCY}, pos=TAG or ner=TAG"
                )
            if name.partition("=")[0] in self.tables:
                raise ValueError(f"feature {name[:40]!r} and an embedding of the same tags")
        return self

    @property
    def aligned(self) -> bool:
        """Whether a word of the document attends to the question."""
        return "aligned" in self.inputs

    @property
    def reads_question(self) -> bool:
        """Whether the description of a document's word depends on the question."""
        return self.aligned or not set(IN_QUESTION).isdisjoint(self.features)

    @property
    def tables(self) -> dict[str, TagTable]:
        """The embeddings of tags, by the tag's name, in the order of their columns."""
        tables = {"pos": self.pos, "ner": self.ner}
        return {name: table for name, table in tables.items() if table is not None}

    @property
    def needs(self) -> tuple[str, ...]:
        """The lists that a caller gives with a document: lemmas, parts of speech, entities."""
        lemmas = ["lemmas"] if IN_QUESTION[2] in self.features else []
        return (*lemmas, *(tag for tag in TAGS if self.labels(tag)))

    def labels(self, tag: str) -> tuple[str, ...]:
        """The tags of a kind that the network knows, in id order; another one has the next id."""
        table, start = self.tables.get(tag), f"{tag}="
        if table is not None:
            return table.labels
        return tuple(name[len(start) :] for name in self.features if name.startswith(start))

    def document_width(self, width: int) -> int:
        """Width of the document encoder's input over embeddings of `width`."""
        sizes = {"words": width, "aligned": width, "features": len(self.features)}
        sizes |= {name: table.size for name, table in self.tables.items()}
        return sum(sizes[part] for part in self.inputs)

    def question_rnn(self, rnn: StackConfigT, width: int) -> StackConfigT:
        """The question's encoder over embeddings of `width`."""
        fields = {"input_size": width, "num_layers": self.question_layers}
        return type(rnn).model_validate(rnn.model_dump() | fields)

    def shapes(self, rnn: StackConfig, width: int) -> Shapes:
        """Return the shapes of the tensors beside the embedding and the document's encoder."""
        question = self.question_rnn(rnn, width)
        shapes: Shapes = {f"question.{k}": shape for k, shape in question.shapes().items()}
        if self.aligned:
            shapes |= {"match.weight": (width, width), "match.bias": (width,)}
        if self.question_merge == "self_attn":
            shapes |= {"merge.weight": (1, question.output_size), "merge.bias": (1,)}
        for end in ("start", "end"):
            shapes[f"{end}.weight"] = (rnn.output_size, question.output_size)
            shapes[f"{end}.bias"] = (rnn.output_size,)
        for name, table in self.tables.items():
            shapes[f"tags.{name}.weight"] = (len(table.labels), table.size)
        return shapes

    def check(self, rnn: StackConfig, width: int, vocab_size: int | None) -> None:
        """Raise ValueError unless the parts fit the network."""
        if vocab_size is None or vocab_size > MAX_VOCABULARY:
            raise ValueError(
                f"task answer needs vocab_size, at most {MAX_VOCABULARY:,}: its inputs are words"
            )
        if not rnn.bidirectional:
            raise ValueError("task answer needs a bidirectional stack")
        if isinstance(rnn.hidden_size, tuple):
            raise ValueError("task answer needs one hidden_size for all layers of its encoders")
        if (inputs := self.document_width(width)) != rnn.input_size:
            raise ValueError(
                f"a word of the document has {inputs} numbers, but the stack's input_size is "
                f"{rnn.input_size}"
            )
        self.question_rnn(rnn, width)
