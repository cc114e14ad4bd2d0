"""Seal a tenant's states of one model as tokens, without holding the model's weights."""

from time import perf_counter

from sruserve.kernels.slots import WINDOW
from sruserve.model.folder import Model
from sruserve.model.heads.crf import LinearChain
from sruserve.server.auth import Tenant
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import StateRefused, StateTampered, StateTooLarge
from sruserve.server.metrics.metrics import state_metrics
from sruserve.server.state.codec import numbers_size
from sruserve.server.state.life import StateLife
from sruserve.server.state.token import Binding, StateSealer


class SealedStates:
    """Seals and opens states that are bound to a model's weights and dtype, and to a tenant.

    name: the model's. nbytes: the most of one state, without its texts.
    weights: names the model's weights and dtype. life: of all states of these weights.
    """

    def __init__(
        self, model: Model, sealer: StateSealer, tenant: Tenant, life: StateLife | None = None
    ) -> None:
        layout = model.network.layout
        self.name, self.tenant, self.nbytes = model.name, tenant, model.network.state_bytes
        self._sealer = sealer
        self._binding = Binding.of(model.digest, model.dtype, layout.width, tenant.id)
        self.weights = self._binding.weights
        self.life = life or StateLife(sealer.clock())
        # a full window counts from the start, because the window grows with the stream
        window = WINDOW if model.config.task == "generate" else 0
        labels = len(model.labels)
        self._crf = crf = model.network.crf
        if crf is not None:
            labels, window = crf.state_size, 2 * crf.window
        self._fit = sealer.fits(numbers_size(layout.width, labels, window))
        self._metrics = state_metrics(model.name)

    def match(self, other: "SealedStates") -> bool:
        """Whether both have the same weights, dtype and tenant, and so open the same states."""
        return self._binding == other._binding

    def check_fit(self, wanted_by: str | None = None) -> None:
        """Raise `StateTooLarge` if no token can hold a state of this model."""
        if not self._fit:
            advice = f"leave out `{wanted_by}`, or " if wanted_by else ""
            raise StateTooLarge(
                f"a state of {self.name} has {self.nbytes} bytes, too many for a token; {advice}"
                "ask the operator to raise SRUSERVE_MAX_STATE_TOKEN_BYTES",
                param=wanted_by,
            )

    def check_store_fit(self) -> None:
        """Raise `StateTooLarge` if no store of sealed states can hold one of this model."""
        if not self._fit:
            raise StateTooLarge(
                f"a state of {self.name} has {self.nbytes} bytes, too many for the store of "
                "streams; ask the operator to raise SRUSERVE_MAX_STATE_TOKEN_BYTES"
            )

    def open(self, token: str) -> Snapshot:
        """The snapshot in a token; raises `StateRefused`."""
        begin = perf_counter()
        try:
            snapshot = self._sealer.open(token, self._binding)
            if self._crf is not None:
                _check_paths(snapshot, self._crf)
        except StateRefused as error:
            error.param = "state"
            self._metrics.rejected(error.code)
            raise
        self._metrics.opened(perf_counter() - begin)
        return snapshot

    def seal(self, snapshot: Snapshot, *, never_expires: bool = False) -> str:
        """The token of a snapshot. never_expires: it has no expiry."""
        begin = perf_counter()
        token = self._sealer.seal(snapshot, self._binding, never_expires=never_expires)
        self._metrics.sealed(perf_counter() - begin)
        if not never_expires:
            self.life.sealed_at = self._sealer.clock()
        return token

    def mark_stored(self) -> None:
        """Record that a stream of these states lives on in a store outside this process."""
        self.life.stored_at = self._sealer.clock()

    def mark_used(self) -> None:
        """Record that a socket, or a stream in this process's memory, has a state."""
        self.life.held_at = self._sealer.clock()

    def seal_for_store(self, snapshot: Snapshot) -> str:
        """The token of a state for the server's own store, which never expires."""
        self.check_store_fit()
        return self.seal(snapshot, never_expires=True)


def _check_paths(snapshot: Snapshot, crf: LinearChain) -> None:
    """Raise `StateTampered` unless a snapshot has paths of this CRF, and places of their steps."""
    try:
        steps = len(crf.begin(snapshot.probabilities).steps)
    except ValueError as error:
        raise StateTampered(
            f"the state's open labels do not fit the model, because {error}; "
            "send it as it was returned"
        ) from None
    if len(snapshot.window) not in (0, 2 * steps):
        raise StateTampered(
            "the state's open labels do not fit their text; send it as it was returned"
        )
