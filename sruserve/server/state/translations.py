"""Seal a tenant's partial translations by one system as tokens."""

from time import perf_counter

from sruserve.model.translation.folder import TranslationModel
from sruserve.server.auth import Tenant
from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.errors import StateRefused, StateTooLarge
from sruserve.server.metrics.metrics import state_metrics
from sruserve.server.state.life import StateLife
from sruserve.server.state.token import Binding, StateSealer
from sruserve.server.state.translation_codec import (
    pack_translation,
    packed_size,
    unpack_translation,
)


class SealedTranslations:
    """Seals and opens translations that are bound to a system's weights, and to a tenant.

    weights: names the system's weights and dtype. life: of all states of these weights.
    """

    def __init__(
        self,
        model: TranslationModel,
        sealer: StateSealer,
        tenant: Tenant,
        life: StateLife | None = None,
    ) -> None:
        self._name, self._translator, self._sealer = model.name, model.translator, sealer
        self._binding = Binding.of(model.digest, model.dtype, 0, tenant.id)
        self.weights = self._binding.weights
        self.life = life or StateLife(sealer.clock())
        self._metrics = state_metrics(model.name)

    def check_fit(self, ids: int, tokens: int, word: str) -> int:
        """The most bytes of a packed translation of so many ids and tokens.

        Raises `StateTooLarge` if no token can hold it.
        """
        size = packed_size(self._translator, ids, tokens, word)
        if not self._sealer.fits(size):
            raise StateTooLarge(
                f"a source of {ids} tokens makes a state of {size} bytes for {self._name}, too "
                "many for a token: send shorter texts, or ask the operator to raise "
                "SRUSERVE_MAX_STATE_TOKEN_BYTES",
                param="more",
            )
        return size

    def open(self, token: str) -> PartialTranslation:
        """The translation in a token; raises `StateRefused`."""
        begin = perf_counter()
        try:
            packed = self._sealer.open_packed(token, self._binding)
            partial = unpack_translation(packed, self._translator)
        except StateRefused as error:
            error.param = "state"
            self._metrics.rejected(error.code)
            raise
        self._metrics.opened(perf_counter() - begin)
        return partial

    def seal(self, partial: PartialTranslation) -> str:
        """The token of a translation."""
        begin = perf_counter()
        token = self._sealer.seal_packed(pack_translation(partial), self._binding)
        self._metrics.sealed(perf_counter() - begin)
        self.life.sealed_at = self._sealer.clock()
        return token
