"""What is served under a model's name, whatever kind of model it is."""

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import Protocol, Self

import torch

from sruserve.model.versions import VERSION_MARK
from sruserve.server.auth import Tenant
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import CannotStream
from sruserve.server.repository.passage import DocumentPreset
from sruserve.server.state.life import StateLife


def versioned(name: str, version: str) -> str:
    """The id of one version of a model."""
    return f"{name}{VERSION_MARK}{version}"


class TaskConfig(Protocol):
    """The part of a model's config that all kinds of models have."""

    @property
    def task(self) -> str: ...
    @property
    def description(self) -> str | None: ...


class LoadedModel(Protocol):
    """A loaded model of any kind; `Model` documents each member."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def config(self) -> TaskConfig: ...
    @property
    def digest(self) -> str: ...
    @property
    def dtype(self) -> str: ...


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


class Served:
    """A model of any kind with its engine, for one tenant.

    task: the model's task.
    owner: the owner under whom the engine counts the jobs: see `Tenant`.
    in_flight: counts the requests that may submit jobs to the engine; shared by all tenants.
    labels: of its classes; empty without any.
    weights: names the model's weights and dtype.
    life: of all states of the model's weights; shared by all tenants.
    presets: named start states, or documents of a reader, shared by all tenants.
    """

    model: LoadedModel
    engine: JobEngine
    labels: tuple[str, ...]
    weights: str
    life: StateLife
    presets: Mapping[str, Snapshot | DocumentPreset]

    def __init__(
        self, model: LoadedModel, engine: JobEngine, tenant: Tenant, in_flight: InFlight | None
    ) -> None:
        self.name, self.version, self.task = model.name, model.version, model.config.task
        self.model, self.engine = model, engine
        self.tenant, self.owner = tenant, tenant.owner
        self.in_flight = in_flight or InFlight()

    @property
    def id(self) -> str:
        """The id that names this version alone."""
        return versioned(self.name, self.version)

    @property
    def vocab_size(self) -> int | None:
        """The number of its token ids; None: it takes features."""
        raise NotImplementedError

    @property
    def family(self) -> str:
        """The kind of its layers."""
        raise NotImplementedError

    @property
    def shape(self) -> str:
        """Its layers and their widths, in words."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        raise NotImplementedError

    @property
    def not_streamable_because(self) -> str | None:
        """Why no state can continue an input of this model, as a clause "it …"; None: one can."""
        raise NotImplementedError

    @property
    def has_states(self) -> bool:
        """Whether states of it may arrive in later requests."""
        return self.not_streamable_because is None

    @cached_property
    def chunks_or_parts(self) -> str:
        """How to send an input that is too long: in chunks, if a state continues the first one."""
        chunks = self.not_streamable_because is None
        return "send it in chunks with `state`" if chunks else "send parts of it"

    @cached_property
    def chunks_or_fewer(self) -> str:
        """How to change a request whose reply would be too long."""
        chunks = self.not_streamable_because is None
        return f"send {'chunks with `state`' if chunks else 'shorter inputs'}, or fewer inputs"

    @property
    def state_bytes(self) -> int:
        """The most bytes of a stream's state; 0: it has none."""
        raise NotImplementedError

    def for_tenant(self, tenant: Tenant) -> Self:
        """The same model and engine for a tenant."""
        raise NotImplementedError

    def check_admission(self, cost: int) -> None:
        """Raise `Overloaded` or `Draining` if the engine would refuse a job of `cost` bytes.

        Called before a request is read; `submit` checks again.
        """
        self.engine.check_admission(cost, self.owner)

    def submit(self, job: Job) -> None:
        """Submit a job to the engine, or raise at once."""
        job.tenant = self.owner
        self.engine.submit(job)

    def check_streams(self, field: str | None) -> None:
        """Raise `CannotStream` if a request has a field about states and the model has none."""
        if field and (because := self.not_streamable_because) is not None:
            fields = "`state`, `preset`, `return_state` and `more`"
            if self.task == "answer":  # whose presets are documents
                fields = "`state` and `return_state`"
            raise CannotStream(
                f"{self.name} cannot continue an input, because {because}: send whole inputs, "
                f"without {fields}",
                param=field,
            )
