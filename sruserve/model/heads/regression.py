"""What a regressor predicts: the names and units of its outputs, and at which steps."""

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_MAX_NAMES = 4096
_MAX_QUANTILES = 256
_LONGEST_NAME = 256  # bytes
_NAME_NUMBER = 64  # bytes of a name that count as one number of a reply; a shorter one is one

Name = Annotated[str, Field(min_length=1)]
Quantile = Annotated[float, Field(gt=0, lt=1)]


class Regression(BaseModel):
    """The outputs of task regress.

    With quantiles, the head has one output for each name and quantile: all quantiles of the first
    name, then those of the second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: Annotated[tuple[Name, ...], Field(fail_fast=True)] = Field(
        min_length=1, max_length=_MAX_NAMES, description="Names of the predicted values, in order."
    )
    units: Annotated[tuple[str, ...], Field(fail_fast=True)] = Field(
        (), description="Unit of each value, such as °C; empty: none are known."
    )
    quantiles: Annotated[tuple[Quantile, ...], Field(fail_fast=True)] = Field(
        (), max_length=_MAX_QUANTILES, description="Predicted quantiles of each value, rising."
    )
    steps: Literal["last", "every"] = Field(
        "last", description="Whether a reply has the values after the last step, or after each."
    )
    forecasts: bool = Field(
        False,
        description="The values are the features of the next step, so they can be fed back; with "
        "quantiles, the medians are.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.names)) != len(self.names):
            raise ValueError("two outputs have the same name: give each its own")
        for text in (*self.names, *self.units):
            if (size := len(text.encode())) > _LONGEST_NAME:
                raise ValueError(f"{text[:40]!r}… has {size:,} bytes; the limit is {_LONGEST_NAME}")
        if self.units and len(self.units) != len(self.names):
            raise ValueError(f"there are {len(self.units)} units for {len(self.names)} names")
        if any(a >= b for a, b in pairwise(self.quantiles)):
            raise ValueError("quantiles must rise")
        if self.forecasts and self.quantiles and 0.5 not in self.quantiles:
            raise ValueError("forecasts feeds medians back, so quantiles must contain 0.5")
        return self

    @cached_property
    def row_numbers(self) -> int:
        """Size of a reply with one row of values, in numbers."""
        return 2 * self.outputs + sum(len(name.encode()) // _NAME_NUMBER for name in self.names)

    @property
    def outputs(self) -> int:
        """Number of outputs of the head."""
        return len(self.names) * max(1, len(self.quantiles))

    @property
    def fed_back(self) -> slice:
        """The outputs that are the features of the next step."""
        count = max(1, len(self.quantiles))
        return slice(self.quantiles.index(0.5) if self.quantiles else 0, None, count)
