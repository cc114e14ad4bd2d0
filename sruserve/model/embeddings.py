"""Embeddings: ids to the rows that the first layer reads."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from pydantic import Field
from torch import Tensor

from sruserve.kernels import LinearOp
from sruserve.model.cells.stack import Builder, Shapes
from sruserve.model.clusters import Cluster, Clustered


class Embedding(Protocol):
    """Maps ids to rows.

    table: (vocab_size, input_size), the compute dtype, if a row is a plain look-up; otherwise None.
    """

    @property
    def table(self) -> Tensor | None: ...

    def __call__(self, ids: Tensor) -> Tensor:
        """Look up ids (rows), int64 and in range; returns (rows, input_size), the compute dtype."""
        ...


class EmbeddingConfig(Clustered):
    """A table with a row for each id; with `size`, the adaptive one of the SRU++ experiments."""

    scale: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Multiplies every row, as √n_d in Transformers."
    )

    def shapes(self, vocab_size: int, input_size: int, tied: bool) -> Shapes:
        """Return its tensors' shapes. A tied adaptive one uses the rows of `output.{i}.weight`."""
        if not self.adaptive:
            return {"embedding.weight": (vocab_size, input_size)}
        shapes: Shapes = {}
        for i, cluster in enumerate(self.clusters(vocab_size)):
            if not tied:
                shapes[f"embedding.{i}.weight"] = (cluster.words, cluster.width)
            shapes[f"embedding.{i}.proj"] = (input_size, cluster.width)
        return shapes

    def make(
        self, tensors: Mapping[str, Tensor], vocab_size: int, builder: Builder, tied: bool
    ) -> Embedding:
        """Build the embedding from the tensors that `shapes` names, and those of a tied head."""
        if not self.adaptive:
            return PlainEmbedding(builder.put(tensors["embedding.weight"].float() * self.scale))
        clusters = self.clusters(vocab_size)
        owner = "output" if tied else "embedding"
        # The first cluster of a tied head has rows for the other clusters after its words.
        weights = [tensors[f"{owner}.{i}.weight"][: c.words] for i, c in enumerate(clusters)]
        projections = [tensors[f"embedding.{i}.proj"] for i in range(len(clusters))]
        return AdaptiveEmbedding(
            clusters,
            [builder.put(torch.cat((w, w.new_zeros(1, w.shape[1])))) for w in weights],
            builder.linear(torch.cat(projections, 1).float() * self.scale),
        )


class PlainEmbedding:
    """A table with one row for each id."""

    def __init__(self, table: Tensor) -> None:
        self.table: Tensor | None = table
        self._rows = table

    def __call__(self, ids: Tensor) -> Tensor:
        """See `Embedding`."""
        return self._rows.index_select(0, ids)


class AdaptiveEmbedding:
    """Rows whose width depends on the cluster, projected to one width (Baevski and Auli 2019).

    An id's row in its own cluster and zeros in the other clusters are concatenated and projected by
    one product. So the path of a row does not depend on the other ids, and the host need not know
    the ids' clusters on a GPU.

    weights: (words + 1, width) for each cluster, the last row zeros.
    projection: (sum of widths) -> (input_size).
    """

    table: Tensor | None = None

    def __init__(
        self, clusters: Sequence[Cluster], weights: Sequence[Tensor], projection: LinearOp
    ) -> None:
        self._clusters, self._weights = clusters, weights
        self._projection = projection

    def __call__(self, ids: Tensor) -> Tensor:
        """See `Embedding`."""
        parts = []
        for cluster, weight in zip(self._clusters, self._weights, strict=True):
            inside = (ids >= cluster.first) & (ids < cluster.end)
            rows = torch.where(inside, ids - cluster.first, cluster.words)
            parts.append(weight.index_select(0, rows))
        return self._projection(torch.cat(parts, 1))
