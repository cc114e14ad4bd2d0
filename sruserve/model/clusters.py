"""A vocabulary in clusters: frequent words in wide rows, rare ones in narrow rows."""

from typing import Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from sruserve.model.cells.stack import Width


class Cluster(NamedTuple):
    """The ids from `first` to `end`, whose rows are `width` numbers wide."""

    first: int
    end: int
    width: int

    @property
    def words(self) -> int:
        return self.end - self.first


class Clustered(BaseModel):
    """The clusters of an adaptive embedding or an adaptive softmax (Baevski and Auli 2019).

    Cluster `i` holds the ids from one cutoff to the next, in rows of `size // divide**i` numbers,
    and a projection between that width and the network's own. Without `size` there are no clusters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cutoffs: Annotated[tuple[PositiveInt, ...], Field(fail_fast=True)] = Field(
        (), max_length=64, description="First id of each cluster after the first."
    )
    size: Width | None = Field(None, description="Width of the first cluster's rows.")
    divide: PositiveInt = Field(
        4, le=1 << 20, description="Ratio of each cluster's width to that of the next."
    )

    @model_validator(mode="after")
    def _describes_clusters(self) -> Self:
        if self.cutoffs and self.size is None:
            raise ValueError("cutoffs need size, the width of the first cluster's rows")
        if any(a >= b for a, b in zip(self.cutoffs, self.cutoffs[1:], strict=False)):
            raise ValueError(f"cutoffs must rise: {list(self.cutoffs)[:8]}")
        if self.size is not None and self.size < self.divide ** len(self.cutoffs):
            raise ValueError(
                f"size {self.size} is too small for {len(self.cutoffs) + 1} clusters with divide "
                f"{self.divide}: the last one's rows would be empty; lower divide or raise size"
            )
        return self

    @property
    def adaptive(self) -> bool:
        return self.size is not None

    def clusters(self, vocab_size: int) -> list[Cluster]:
        """Return the clusters of ids 0 to `vocab_size`; none if all rows have one width."""
        if self.size is None:
            return []
        ends = (*self.cutoffs, vocab_size)
        return [
            Cluster(first, end, self.size // self.divide**i)
            for i, (first, end) in enumerate(zip((0, *self.cutoffs), ends, strict=True))
        ]

    def check_vocabulary(self, vocab_size: int | None) -> None:
        """Raise ValueError unless the clusters fit a vocabulary of `vocab_size` entries."""
        if self.cutoffs and (vocab_size is None or self.cutoffs[-1] >= vocab_size):
            raise ValueError(f"cutoffs must be below vocab_size ({vocab_size})")
