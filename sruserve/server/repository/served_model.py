"""A served model: turns requests into jobs, and states into tokens."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from sruserve.model.folder import Model
from sruserve.model.versions import VERSION_MARK
from sruserve.server.auth import Tenant
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job, Result, Snapshot, StateOutput
from sruserve.server.errors import (
    CannotStream,
    InvalidRequest,
    PresetNotFound,
)
from sruserve.server.offload import POOL, Offload
from sruserve.server.seeds import new_seed
from sruserve.server.state.envelope import SealedStates
from sruserve.server.state.life import StateLife
from sruserve.server.state.token import StateSealer

# Longer texts are tokenized on another thread, so that they never block the event loop.
LONG_CHARACTERS = 8 << 10
# Limits in look-ups of a tokenizer, 0.2 µs each: for a text on the event loop, and for a character
# on the threads that all models share.
_LOOP_WORK, _SHARED_WORK = 1 << 19, 512


def versioned(name: str, version: str) -> str:
    """The id of one version of a model."""
    return f"{name}{VERSION_MARK}{version}"


class StateRequest(Protocol):
    """The fields of a request about states: those that it continues, and those that it requests."""

    state: str | list[str | None] | None
    preset: str | None

    @property
    def begun_by(self) -> str | None: ...
    @property
    def state_wanted_by(self) -> str | None: ...


class InFlight:
    """Counts the requests of a model, on the event loop's thread.

    While a request is in its `with` block, the model's engine accepts jobs.
    """

    def __init__(self) -> None:
        self._count = 0
        self._none: asyncio.Event | None = None  # while somebody waits for it

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count and self._none is not None:
            self._none.set()

    @property
    def idle(self) -> bool:
        """Whether no request is in flight."""
        return not self._count

    async def wait_idle(self) -> None:
        """Wait until no request is in flight; for one waiter at a time."""
        while self._count:
            self._none = asyncio.Event()
            await self._none.wait()
        self._none = None


class ServedModel:
    """One model with its engine, for one tenant: its states are bound to both.

    owner: the owner under whom the engine counts the jobs: see `Tenant`.
    presets: named start states, shared by all tenants.
    in_flight: counts the requests that may submit jobs to the engine; shared by all tenants.
    pool: the threads that tokenize long texts: one of the model's own if its tokenizer may be very
        slow.
    long_characters: texts with more characters are long.
    states: seals and opens the tenant's states of the model.
    life: of all states of the model's weights; shared by all tenants.
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
        life: StateLife | None = None,
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
        self.states = states or SealedStates(model, sealer, tenant, life)
        self._views: dict[Tenant, ServedModel] = {}

    @property
    def id(self) -> str:
        """The id that names this version alone."""
        return versioned(self.name, self.version)

    def for_tenant(self, tenant: Tenant) -> "ServedModel":
        """The same model and engine for a tenant."""
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
                life=self.states.life,
            )
        return self._views[tenant]

    def check_admission(self, cost: int) -> None:
        """Raise `Overloaded` or `Draining` if the engine would refuse a job of `cost` bytes.

        Called before a request is read; `submit` checks again.
        """
        self.engine.check_admission(cost, self.owner)

    def end_state(self, result: Result) -> Snapshot:
        """The end state of a result, whose job returns one."""
        assert result.state is not None
        return result.state

    def submit(self, job: Job) -> None:
        """Submit a job to the engine, or raise at once."""
        job.tenant = self.owner
        self.engine.submit(job)

    def state_output(self, request: StateRequest) -> StateOutput:
        """The form in which results contain their end states.

        Raises `CannotStream`, or `StateTooLarge` if the reply cannot contain a state.
        """
        field = request.state_wanted_by
        self.check_streams(request.begun_by or field)
        if field is None:
            return StateOutput.NONE
        self.check_fits(field)
        return StateOutput.COPY

    def check_streams(self, field: str | None) -> None:
        """Raise `CannotStream` if a request has a field about states and the model has none."""
        if field and (because := self.model.not_streamable_because) is not None:
            raise CannotStream(
                f"{self.name} cannot continue an input, because {because}: send "
                "whole inputs, without `state`, `preset`, `return_state` and `more`",
                param=field,
            )

    def check_fits(self, field: str) -> None:
        """Raise `StateTooLarge` if no token can hold a state of this model."""
        self.states.check_fit(field)

    def state_numbers(self, state_output: StateOutput) -> int:
        """The numbers in a reply for the state of one stream."""
        return self.model.network.state_size if state_output is StateOutput.COPY else 0

    def initial_states(self, request: StateRequest, count: int) -> list[Snapshot | None]:
        """The start states of `count` inputs: a single state is forked to all of them.

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
        """The start state of a stream: a token's, a preset's, or None."""
        if preset is not None:
            return self._preset(preset)
        return None if state is None else self.open_state(state)

    def open_state(self, token: str) -> Snapshot:
        """The snapshot in a token; raises `StateRefused`."""
        return self.states.open(token)

    def seal_state(self, snapshot: Snapshot | None) -> str | None:
        """The token of a snapshot, if there is one."""
        return None if snapshot is None else self.states.seal(snapshot)

    def seal_stored_state(self, snapshot: Snapshot) -> str:
        """The token of a state for the server's own store, which never expires."""
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
        return replace(preset, seed=new_seed())  # requests share its text, not its sampler
