"""A translation system with its engine."""

from collections.abc import Sequence

import torch

from sruserve.kernels.devices import CPU
from sruserve.model.translation.folder import TranslationModel
from sruserve.server.auth import Tenant
from sruserve.server.engine.job import Job
from sruserve.server.engine.translation.engine import TranslationEngine
from sruserve.server.engine.translation.needs import Needs
from sruserve.server.errors import CannotStream
from sruserve.server.offload import Offload
from sruserve.server.repository.served import InFlight, Served
from sruserve.server.repository.text_work import long_characters, pool_for
from sruserve.server.state.life import StateLife
from sruserve.server.state.token import StateSealer
from sruserve.server.state.translations import SealedTranslations


class ServedTranslator(Served):
    """A model that translates texts, and if its encoder can, texts that arrive in chunks.

    pool, long_characters: as in `ServedModel`, for texts of the source language.
    states: seals and opens the tenant's partial translations.
    """

    model: TranslationModel
    engine: TranslationEngine

    def __init__(
        self,
        model: TranslationModel,
        engine: TranslationEngine,
        sealer: StateSealer,
        tenant: Tenant,
        in_flight: InFlight | None = None,
        pool: Offload | None = None,
        life: StateLife | None = None,
    ) -> None:
        super().__init__(model, engine, tenant, in_flight)
        self.labels, self.presets = (), {}
        self._sealer = sealer
        self.states = SealedTranslations(model, sealer, tenant, life)
        self.weights, self.life = self.states.weights, self.states.life
        work = model.source_text.codec.work if model.source_text is not None else 1.0
        self.pool, self.long_characters = pool or pool_for(work), long_characters(work)
        self._views: dict[Tenant, ServedTranslator] = {}

    @property
    def vocab_size(self) -> int | None:
        return self.model.config.source.vocab_size

    @property
    def family(self) -> str:
        return self.model.config.system.type

    @property
    def shape(self) -> str:
        translator = self.model.translator
        return f"{translator.source_size:,} source ids, {translator.target_size:,} target ids"

    @property
    def device(self) -> torch.device:
        return CPU

    @property
    def not_streamable_because(self) -> str | None:
        return "it translates whole texts" if self.whole_because else "it translates"

    @property
    def whole_because(self) -> str | None:
        """Why a text cannot arrive in chunks, as a clause "it …"; None: it can."""
        because, text = self.model.translator.whole_because, self.model.source_text
        return because if because or text is None else text.codec.uncut_because

    @property
    def has_states(self) -> bool:
        return self.whole_because is None

    def check_chunks(self, field: str) -> None:
        """Raise `CannotStream` for a field of a request in chunks if texts have to be whole."""
        if (because := self.whole_because) is not None:
            raise CannotStream(
                f"{self.name} cannot translate a text while it arrives, because {because}: send "
                "whole texts, without `wait_k`, `state` and `more`",
                param=field,
            )

    def check_streams(self, field: str | None) -> None:
        if field and self.whole_because is None:
            raise CannotStream(
                f"{self.name} translates, and no stream holds a translation: send each chunk to "
                "/v1/translate, with `wait_k` and then with the `state` of the last reply",
                param=field,
            )
        super().check_streams(field)

    @property
    def state_bytes(self) -> int:
        return 0

    def translate(self, job: Job, needs: Sequence[Needs]) -> None:
        """Submit a job once there is memory for it, which is claimed until the job ends.

        Raises `TooManyAtOnce` if there is none, and as `submit`.
        """
        claim = self.engine.claims.hold(self.engine.claim(needs), self.owner)
        try:
            self.submit(job)
        except BaseException:
            claim.release()
            raise
        job.done.add_done_callback(claim.release)

    def for_tenant(self, tenant: Tenant) -> "ServedTranslator":
        if tenant is self.tenant:
            return self
        if tenant not in self._views:
            self._views[tenant] = ServedTranslator(
                self.model,
                self.engine,
                self._sealer,
                tenant,
                self.in_flight,
                self.pool,
                self.life,
            )
        return self._views[tenant]
