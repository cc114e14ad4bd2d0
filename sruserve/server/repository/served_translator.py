"""A translation system with its engine."""

import time
from collections.abc import Sequence

import torch

from sruserve.kernels.devices import CPU
from sruserve.model.translation.folder import TranslationModel
from sruserve.server.auth import Tenant
from sruserve.server.engine.job import Job
from sruserve.server.engine.translation.engine import TranslationEngine
from sruserve.server.engine.translation.needs import Needs
from sruserve.server.offload import Offload
from sruserve.server.repository.served import InFlight, Served
from sruserve.server.repository.text_work import long_characters, pool_for
from sruserve.server.state.life import StateLife


class ServedTranslator(Served):
    """A model that translates whole texts. Nothing of a request is left when it has ended.

    pool, long_characters: as in `ServedModel`, for texts of the source language.
    """

    model: TranslationModel
    engine: TranslationEngine

    def __init__(
        self,
        model: TranslationModel,
        engine: TranslationEngine,
        tenant: Tenant,
        in_flight: InFlight | None = None,
        pool: Offload | None = None,
        life: StateLife | None = None,
    ) -> None:
        super().__init__(model, engine, tenant, in_flight)
        self.labels, self.presets = (), {}
        self.weights, self.life = model.digest, life or StateLife(time.time())
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
        return "it translates whole texts"

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
                self.model, self.engine, tenant, self.in_flight, self.pool, self.life
            )
        return self._views[tenant]
