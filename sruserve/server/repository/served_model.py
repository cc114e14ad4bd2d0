"""A served model: turns requests into jobs, and states into tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch

from sruserve.model.folder import Model
from sruserve.server.auth import Tenant
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.results import Result
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import InvalidRequest, PresetNotFound, first_of
from sruserve.server.offload import Offload
from sruserve.server.repository.passage import DocumentPreset
from sruserve.server.repository.served import InFlight, Served
from sruserve.server.repository.text_work import long_characters, pool_for
from sruserve.server.seeds import new_seed
from sruserve.server.state.envelope import SealedStates
from sruserve.server.state.life import StateLife
from sruserve.server.state.token import StateSealer


class StateRequest(Protocol):
    """The fields of a request about states: those that it continues, and those that it requests."""

    state: str | list[str | None] | None
    preset: str | None

    @property
    def begun_by(self) -> str | None: ...
    @property
    def state_wanted_by(self) -> str | None: ...


class ServedModel(Served):
    """A model whose streams have states, which are bound to the model and the tenant.

    pool: the threads that tokenize long texts: one of the model's own if its tokenizer may be very
        slow.
    long_characters: texts with more characters are long.
    states: seals and opens the tenant's states of the model.
    """

    model: Model
    engine: Engine

    def __init__(
        self,
        model: Model,
        engine: Engine,
        sealer: StateSealer,
        tenant: Tenant,
        presets: Mapping[str, Snapshot | DocumentPreset] | None = None,
        in_flight: InFlight | None = None,
        pool: Offload | None = None,
        states: SealedStates | None = None,
        life: StateLife | None = None,
    ) -> None:
        super().__init__(model, engine, tenant, in_flight)
        self.labels, self.presets = model.labels, presets or {}
        work = model.codec.work if model.codec is not None else 1.0
        self.pool = pool or pool_for(work)
        self.long_characters = long_characters(work)
        self.sealer = sealer
        self.states = states or SealedStates(model, sealer, tenant, life)
        self.weights, self.life = self.states.weights, self.states.life
        self._views: dict[Tenant, ServedModel] = {}

    @property
    def vocab_size(self) -> int | None:
        return self.model.config.vocab_size

    @property
    def family(self) -> str:
        return self.model.config.model_type

    @property
    def shape(self) -> str:
        rnn = self.model.config.rnn
        widths = rnn.hidden_size if isinstance(rnn.hidden_size, tuple) else (rnn.hidden_size,)
        width = "/".join(map(str, widths)) + (" in both directions" if rnn.bidirectional else "")
        return f"{rnn.num_layers} layers x {width}"

    @property
    def device(self) -> torch.device:
        return self.model.network.device

    @property
    def not_streamable_because(self) -> str | None:
        return self.model.not_streamable_because

    @property
    def state_bytes(self) -> int:
        return self.model.network.state_bytes

    def for_tenant(self, tenant: Tenant) -> "ServedModel":
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
                life=self.life,
            )
        return self._views[tenant]

    def _share(self, served: "ServedModel") -> None:
        """Be another view of a served model: all that it has, by reference.

        A view for one step calls it instead of the constructor, whose work is that of a model.
        """
        self.__dict__.update(served.__dict__)

    def end_state(self, result: Result) -> Snapshot:
        """The end state of a result, whose job returns one."""
        assert result.state is not None
        return result.state

    def state_output(self, request: StateRequest) -> StateOutput:
        """The form in which results contain their end states.

        Raises `CannotStream`, or `StateTooLarge` if the reply cannot contain a state.
        """
        field = request.state_wanted_by
        if state_field := request.begun_by or field:
            self.check_streams(state_field)
        if field is None:
            return StateOutput.NONE
        self.check_fits(field)
        return StateOutput.COPY

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

    def document_preset(self, name: str) -> DocumentPreset:
        """A reader's document of this name; raises `PresetNotFound`."""
        preset = self._find_preset(name)
        assert isinstance(preset, DocumentPreset)
        return preset

    def _preset(self, name: str) -> Snapshot:
        preset = self._find_preset(name)
        assert isinstance(preset, Snapshot)
        return replace(preset, seed=new_seed())  # requests share its text, not its sampler

    def _find_preset(self, name: str) -> Snapshot | DocumentPreset:
        try:
            return self.presets[name]
        except KeyError:
            raise PresetNotFound(
                f"{self.name} has no preset {name[:100]!r}; it has: {first_of(self.presets)}",
                param="preset",
            ) from None


def with_states(served: Served) -> ServedModel:
    """A model whose streams have states; raises `CannotStream` for one of another kind."""
    if not isinstance(served, ServedModel):
        served.check_streams("model")
        raise AssertionError(f"{served.name} has no states and does not say why")
    return served
