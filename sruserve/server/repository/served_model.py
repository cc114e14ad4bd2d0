"""A served model: what the routes need to turn requests into jobs and states into tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from sruserve.model.folder import Model
from sruserve.server.auth import Tenant
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job, Snapshot, StateOutput
from sruserve.server.errors import (
    CannotStream,
    InvalidRequest,
    PresetNotFound,
)
from sruserve.server.offload import POOL, Offload
from sruserve.server.repository.in_flight import InFlight
from sruserve.server.seeds import new_seed
from sruserve.server.state.envelope import SealedStates
from sruserve.server.state.token import StateSealer

# Longer texts are turned into ids on another thread, so that the event loop never stands still.
LONG_CHARACTERS = 8 << 10
# Look-ups of a tokenizer, 0.2 µs each: all at once on the event loop; for a character on the
# threads that all models share.
_LOOP_WORK, _SHARED_WORK = 1 << 19, 512


class StateRequest(Protocol):
    """What a request says of states: those it continues, and whether it asks for one."""

    state: str | list[str | None] | None
    preset: str | None

    @property
    def begun_by(self) -> str | None: ...
    @property
    def state_wanted_by(self) -> str | None: ...


class ServedModel:
    """One model with its engine, as a tenant sees it: its states are bound to both.

    owner: whose jobs the engine counts together: see `Tenant`.
    presets: named states to begin from, which all tenants share.
    in_flight: the requests that may still submit jobs to the engine; all tenants share them, too.
    pool: where long texts are turned into ids: a thread of the model's own, if that may take a
        tokenizer very long.
    long_characters: texts of more are long.
    states: seals and opens the tenant's states of the model.
    """

    def __init__(
        self,
        model: Model,
        engine: Engine,
        sealer: StateSealer,
        tenant: Tenant,
        presets: Mapping[str, Snapshot] | None = None,
        in_flight: InFlight | None = None,
        pool: Offload | None = None,
        states: SealedStates | None = None,
    ) -> None:
        self.name, self.version = model.name, model.version
        self.model = model
        self.labels = model.labels
        self.engine = engine
        self.presets = presets or {}
        self.tenant, self.owner = tenant, tenant.owner
        self.in_flight = in_flight or InFlight()
        work = model.codec.work if model.codec is not None else 1.0
        self.pool = pool or (POOL if work <= _SHARED_WORK else Offload(1))
        self.long_characters = int(min(LONG_CHARACTERS, _LOOP_WORK / work))
        self.sealer = sealer
        self.states = states or SealedStates(model, sealer, tenant)
        self._views: dict[Tenant, ServedModel] = {}

    def for_tenant(self, tenant: Tenant) -> "ServedModel":
        """The same model and engine as a tenant sees them."""
        if tenant is self.tenant:
            return self
        if tenant not in self._views:
            self._views[tenant] = ServedModel(
                self.model,
                self.engine,
                self.sealer,
                tenant,
                self.presets,
                self.in_flight,
                self.pool,
            )
        return self._views[tenant]

    def check_admission(self, cost: int) -> None:
        """Raise `Overloaded` or `Draining` if a job of `cost` bytes has no chance.

        Asked once, before a request is read; the second and last time is `submit`.
        """
        self.engine.check_admission(cost, self.owner)

    def submit(self, job: Job) -> None:
        """Hand a job to the engine, or raise at once."""
        job.tenant = self.owner
        self.engine.submit(job)

    def state_output(self, request: StateRequest) -> StateOutput:
        """What results carry of the states that they end in; what cannot be is refused here.

        Raises `CannotStream`, or `StateTooLarge` if the reply is to hold a state.
        """
        wanted_by = request.state_wanted_by
        self.check_streams(request.begun_by or wanted_by)
        if wanted_by is None:
            return StateOutput.NONE
        self.check_fits(wanted_by)
        return StateOutput.COPY

    def check_streams(self, asked_by: str | None) -> None:
        """Raise `CannotStream` if a field asks a model that reads whole inputs to continue."""
        if asked_by and not self.model.network.supports_streaming:
            because = self.model.network.not_streamable_because
            raise CannotStream(
                f"{self.name} cannot continue an input, because {because}: send "
                "whole inputs, without `state`, `preset`, `return_state` and `more`",
                param=asked_by,
            )

    def check_fits(self, wanted_by: str) -> None:
        """Raise `StateTooLarge` if no token can hold a state of this model."""
        self.states.check_fit(wanted_by)

    def state_numbers(self, keep: StateOutput) -> int:
        """How many numbers a reply holds for the state of one stream."""
        return self.model.network.layout.width if keep is StateOutput.COPY else 0

    def initial_states(self, request: StateRequest, count: int) -> list[Snapshot | None]:
        """What each of `count` inputs goes on from: a single state is forked to all of them.

        Raises `StateRefused`, `PresetNotFound` or `InvalidRequest`.
        """
        tokens = request.state
        if request.preset is not None:
            return [self._preset(request.preset)] * count
        if tokens is None:
            return [None] * count
        if isinstance(tokens, str):
            return [self.open_state(tokens)] * count
        if len(tokens) != count:
            raise InvalidRequest(
                f"there are {len(tokens)} states for {count} inputs; send one state, or one for "
                "each input (null for a new stream)",
                param="state",
            )
        return [None if token is None else self.open_state(token) for token in tokens]

    def initial_state(self, state: str | None, preset: str | None) -> Snapshot | None:
        """What a stream begins with: a token's state, a preset's, or nothing."""
        if preset is not None:
            return self._preset(preset)
        return None if state is None else self.open_state(state)

    def open_state(self, token: str) -> Snapshot:
        """The snapshot in a token; raises `StateRefused`."""
        return self.states.open(token)

    def seal_state(self, snapshot: Snapshot | None) -> str | None:
        """The token of a snapshot, if there is one."""
        return None if snapshot is None else self.states.seal(snapshot)

    def seal_held_state(self, snapshot: Snapshot) -> str:
        """The token of a state that stays with the server's own store, and never expires."""
        return self.states.seal_for_store(snapshot)

    def _preset(self, name: str) -> Snapshot:
        try:
            preset = self.presets[name]
        except KeyError:
            raise PresetNotFound(
                f"{self.name} has no preset {name[:100]!r}; it has: "
                f"{', '.join(self.presets) or 'none'}",
                param="preset",
            ) from None
        return replace(preset, seed=new_seed())  # its text is common to all, its sampler is not
