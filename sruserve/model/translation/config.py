"""The description of a translation system in `config.json`."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from sruserve.model.cells.stack import MAX_WIDTH
from sruserve.model.config import Description, check_format, explain, read_config_file
from sruserve.model.config import is_translation as describes_translation
from sruserve.model.errors import ConfigError
from sruserve.model.translation.recurrent_config import RecurrentConfig
from sruserve.model.translation.transformer_config import TransformerSRUConfig
from sruserve.model.versions import CONFIG_FILE

MAX_VOCABULARY = 1 << 22


class SideConfig(BaseModel):
    """The ids of one language.

    Special ids are ids of the vocabulary that stand for no text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: PositiveInt = Field(le=MAX_VOCABULARY)
    bos: NonNegativeInt | None = Field(
        None, description="Before a text's ids. The target needs one: it begins every translation."
    )
    eos: NonNegativeInt | None = Field(
        None, description="After a text's ids. The target needs one: it ends every translation."
    )
    pad: NonNegativeInt | None = Field(None, description="Stands for nothing; never chosen.")
    unk: NonNegativeInt | None = Field(None, description="Stands for unknown words.")

    @property
    def special(self) -> tuple[int, ...]:
        """The special ids, without unk."""
        return tuple(i for i in (self.bos, self.eos, self.pad) if i is not None)

    @model_validator(mode="after")
    def _has_its_special_ids(self) -> Self:
        for name in ("bos", "eos", "pad", "unk"):
            special = getattr(self, name)
            if special is not None and special >= self.vocab_size:
                raise ValueError(f"{name} ({special}) is no id: vocab_size is {self.vocab_size}")
        return self


class TranslationConfig(BaseModel):
    """A complete translation system: its vocabularies, its encoder and its decoder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Not written while it is 1, as in `ModelConfig`.
    format_version: PositiveInt = Field(1, exclude=True)
    architectures: Annotated[tuple[str, ...], Field(fail_fast=True)]
    task: Literal["translate"] = "translate"
    description: Description | None = Field(None, description="As in `ModelConfig`.")
    dtype: Literal["float32"] = Field("float32", description="Compute dtype.")
    source: SideConfig
    target: SideConfig
    system: TransformerSRUConfig | RecurrentConfig = Field(discriminator="type")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.target.bos is None or self.target.eos is None:
            raise ValueError("target needs bos and eos: they begin and end every translation")
        if self.target.bos == self.target.eos and self.target.vocab_size < 2:
            raise ValueError("target needs an id besides bos and eos")
        self.system.check_vocabularies(self.source.vocab_size, self.target.vocab_size)
        if (width := self.system.widest) > MAX_WIDTH:
            raise ValueError(
                f"a step would have a row of {width:,} numbers; the limit is {MAX_WIDTH:,}"
            )
        return self


def is_translation(folder: Path) -> bool:
    """Whether a model folder's config is that of a translation system; raises `ConfigError`."""
    path = folder / CONFIG_FILE
    try:
        return describes_translation(read_config_file(path))
    except ValidationError as error:
        raise ConfigError(f"{path} is not a valid config: {explain(error)}") from error


def read_translation_config(path: Path) -> TranslationConfig:
    """Read `config.json`, or raise `ConfigError` that names every invalid field."""
    content = read_config_file(path)
    try:
        check_format(content, path)
        return TranslationConfig.model_validate_json(content)
    except ValidationError as error:
        raise ConfigError(f"{path} is not a valid config: {explain(error)}") from error
