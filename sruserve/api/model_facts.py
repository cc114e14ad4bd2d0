"""What a loaded model is, for programs and for a notebook's reader."""

from sruserve.api.local_model import LocalModel

_SHOWN = 6  # labels


class ModelFacts:
    """The facts of a model."""

    def __init__(self, local: LocalModel) -> None:
        self._local = local

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self._local.served.name

    @property
    def task(self) -> str:
        """`classify`, `pair`, `tag`, `regress`, `answer`, `encode`, `generate` or `translate`."""
        return self._local.served.task

    @property
    def family(self) -> str:
        """The kind of its layers, such as `sru`; of a translation system, that of the system."""
        return self._local.served.family

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a model that has some."""
        return self._local.served.labels

    @property
    def vocabulary_size(self) -> int | None:
        """The number of token ids that it reads; None: it reads features."""
        return self._local.served.vocab_size

    @property
    def presets(self) -> tuple[str, ...]:
        """The names of the beginnings that its folder has."""
        return tuple(self._local.served.presets)

    @property
    def state_bytes(self) -> int:
        """Bytes that a stream's state takes at most, without its texts."""
        return self._local.served.state_bytes

    @property
    def device(self) -> str:
        """Where it computes: `cpu`, `cuda:0` and so on."""
        return str(self._local.served.device)

    @property
    def dtype(self) -> str:
        """The dtype in which it computes."""
        return self._local.served.model.dtype

    @property
    def digest(self) -> str:
        """SHA-256 of weights, config and vocabulary, in hex: states are bound to it."""
        return self._local.served.model.digest

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._local.closed

    def __repr__(self) -> str:
        shape = f"{self.family}, {self._local.served.shape}"
        lines = [f"<sruserve model {self.name!r}: {self.task}, {shape}"]
        if self.labels:
            more = ", …" if len(self.labels) > _SHOWN else ""
            lines.append(f"{len(self.labels)} labels: {', '.join(self.labels[:_SHOWN])}{more}")
        if self.vocabulary_size is not None and self.task != "translate":
            lines.append(f"{self.vocabulary_size:,} token ids")
        closed = ", closed" if self.closed else ""
        if self.state_bytes:
            lines.append(f"{self.state_bytes:,} bytes of state for each stream")
        lines += [
            f"{self.dtype} on {self.device}, digest {self.digest[:12]}{closed}>",
        ]
        return "\n  ".join(lines)
