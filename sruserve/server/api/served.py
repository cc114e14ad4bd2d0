"""A served model: what the routes need to turn requests into jobs and states into tokens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from sruserve.kernels.slots import WINDOW
from sruserve.model.folder import Model
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.jobs import Snapshot
from sruserve.server.errors import (
    CannotStream,
    InvalidRequest,
    ModelNotFound,
    StateRefused,
    StateTooLarge,
    WrongTask,
)
from sruserve.server.metrics import StateMetrics
from sruserve.server.snapshot_bytes import numbers_size
from sruserve.server.state_token import Binding, StateSealer


@dataclass(frozen=True)
class InputLimits:
    """What the operator allows one request to hold, and how long it may wait.

    input_bytes: of one text; also its token ids, or steps of features.
    new_tokens: of all completions of the request together.
    reply_numbers: of what one reply says of steps, labels and states.
    unsent_numbers: of the same in all replies of a route that are not yet sent.
    queue_bytes: of the bodies that wait.
    queue_seconds: 0 is no limit.
    """

    body_bytes: int
    input_bytes: int
    inputs: int
    new_tokens: int
    reply_numbers: int
    unsent_numbers: int
    queue_bytes: int
    queue_seconds: float


class Served:
    """One model with its engine, and the tokens of its states."""

    def __init__(self, model: Model, engine: Engine, sealer: StateSealer) -> None:
        self.name = model.name
        self.model = model
        self.labels = model.labels
        self.engine = engine
        self._sealer = sealer
        self._binding = Binding.of(model.digest, model.dtype, model.network.layout.width)
        # a stream's last tokens fill up as it goes on, so they count from the start
        window = WINDOW if model.config.task == "generate" else 0
        layout = model.network.layout
        self._states_fit = sealer.fits(numbers_size(layout.width, len(model.labels), window))
        self._metrics = StateMetrics(model.name)

    def check_states(self, given: bool, wanted_by: str | None) -> None:
        """Refuse, before any work, a state that this model cannot take or return.

        wanted_by: the field of the request that asks for a state.
        """
        if (given or wanted_by) and not self.model.network.streams:
            raise CannotStream(
                f"{self.name} cannot continue an input, because {self.model.network.whole}: send "
                "whole inputs, without `state`, `return_state` and `more`",
                param="state" if given else wanted_by,
            )
        if wanted_by and not self._states_fit:
            raise StateTooLarge(
                f"a state of {self.name} has {self.model.network.layout.nbytes} bytes, too many "
                f"for a token; leave out `{wanted_by}`, or ask the operator to raise "
                "SRUSERVE_MAX_TOKEN_BYTES",
                param=wanted_by,
            )

    def state_numbers(self, wanted: bool) -> int:
        """How many numbers a reply holds for the state of one stream, if it is wanted."""
        return self.model.network.layout.width if wanted else 0

    def open_state(self, token: str) -> Snapshot:
        """The snapshot in a token; raises `StateRefused`."""
        begin = perf_counter()
        try:
            snapshot = self._sealer.open(token, self._binding)
        except StateRefused as error:
            error.param = "state"
            self._metrics.rejected(error.code)
            raise
        self._metrics.opened(perf_counter() - begin)
        return snapshot

    def open_states(
        self, tokens: str | Sequence[str | None] | None, count: int
    ) -> list[Snapshot | None]:
        """One snapshot for each of `count` inputs: a single token is forked to all of them."""
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

    def seal_state(self, snapshot: Snapshot | None) -> str | None:
        """The token of a snapshot, if there is one."""
        if snapshot is None:
            return None
        begin = perf_counter()
        token = self._sealer.seal(snapshot, self._binding)
        self._metrics.minted(perf_counter() - begin)
        return token


class Catalogue(Mapping[str, Served]):
    """All served models, by id."""

    def __init__(self, served: Iterable[Served]) -> None:
        self._by_name = {each.name: each for each in served}

    def __getitem__(self, name: str) -> Served:
        try:
            return self._by_name[name]
        except KeyError:
            raise ModelNotFound(
                f"there is no model {name[:100]!r}; served here: {', '.join(self) or 'none'}",
                param="model",
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def choose(self, name: str | None, *tasks: str) -> Served:
        """The named model, or the only one for the tasks; raises if there is no such model."""
        needed = " or ".join(f"'{task}'" for task in tasks)
        fitting = self._fitting(tasks)
        if name is not None:
            served = self[name]
            if name not in fitting:
                raise WrongTask(
                    f"{name} is a model for '{served.model.config.task}' and this route needs one "
                    f"for {needed}; served here: {', '.join(fitting) or 'none'}",
                    param="model",
                )
            return served
        if len(fitting) != 1:
            raise InvalidRequest(
                f"'model' is missing, and {len(fitting)} of the served models are for {needed}"
                + (f": choose among {', '.join(fitting)}" if fitting else ""),
                param="model",
            )
        return self._by_name[fitting[0]]

    def _fitting(self, tasks: Sequence[str]) -> list[str]:
        return [name for name, each in self._by_name.items() if each.model.config.task in tasks]
