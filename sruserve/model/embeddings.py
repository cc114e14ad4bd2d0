"""Embeddings: what turns ids into the rows that the first layer reads."""

from pydantic import Field

from sruserve.model.clusters import Clustered


class EmbeddingConfig(Clustered):
    """A table with a row for each id; with `size`, the adaptive one of the SRU++ experiments."""

    scale: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Multiplies every row, as √n_d in Transformers."
    )

    def shapes(self, vocab_size: int, input_size: int, tied: bool) -> dict[str, tuple[int, ...]]:
        """Its tensors. Tied, an adaptive embedding's rows are the first of `output.{i}.weight`."""
        if not self.adaptive:
            return {"embedding.weight": (vocab_size, input_size)}
        shapes: dict[str, tuple[int, ...]] = {}
        for i, cluster in enumerate(self.clusters(vocab_size)):
            if not tied:
                shapes[f"embedding.{i}.weight"] = (cluster.words, cluster.width)
            shapes[f"embedding.{i}.proj"] = (input_size, cluster.width)
        return shapes
