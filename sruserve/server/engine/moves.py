"""States on their way between device rows and host memory, while the steps go on."""

from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from sruserve.server.engine.lanes import Lane, Mark
from sruserve.server.engine.pool import HostRows, StatePool, indices

_STAGING_BYTES = 32 << 20
_STAGED_ROWS = 256
_Staged = Callable[[list[int]], Mark]


class Move:
    """Some states on their way. All of them arrive, or none and `error` says why.

    states: what `Moves.take` took, in memory of its own, once the move is done.
    """

    __slots__ = ("_ended", "_mark", "_owner", "endings", "error", "rows", "states")

    def __init__(self, owner: "Moves", rows: Sequence[int]) -> None:
        self.rows = rows
        self.error: Exception | None = None
        self.states: list[Tensor] = []
        self.endings: list[Callable[[], None]] = []
        self._owner = owner
        self._mark: Mark | None = None
        self._ended = False

    def done(self) -> bool:
        """Whether it has ended, well or not. Never waits."""
        if not self._ended and self._mark is not None:
            try:
                if self._mark.done():
                    self.end()
            except Exception as error:
                self.end(error)
        return self._ended

    def wait(self) -> None:
        """Hold the host up until it has ended."""
        while not self.launched:
            self._owner.wait_for_staging()
        if not self._ended and self._mark is not None:
            try:
                self._mark.wait()
                self.end()
            except Exception as error:
                self.end(error)

    @property
    def launched(self) -> bool:
        """Whether it no longer waits for memory to pass through."""
        return self._ended or self._mark is not None

    def join(self) -> None:
        """Let the steps that follow come after it. The host does not wait."""
        if not self._ended:
            assert self._mark is not None
            self._owner.lane.join(self._mark)

    def launch(self, copies: Callable[[], Mark]) -> None:
        """Begin; what goes wrong ends it."""
        try:
            self._mark = copies()
        except Exception as error:
            self.end(error)

    def at_once(self, copy: Callable[[], None]) -> "Move":
        """Begin and end: for one memory, where nothing has to be held meanwhile."""
        try:
            copy()
        except Exception as error:
            self.error = error
        self._ended = True
        return self

    def end(self, error: Exception | None = None) -> None:
        """Take down how it went, and let go of all that it held."""
        self._ended, self.error = True, error
        endings, self.endings = self.endings, []
        for ending in endings:
            try:
                ending()
            except Exception as failed:  # out of memory for what was taken
                self.error = failed
        self._owner.ended(self)


class Moves:
    """Moves states for the engine's thread. A row that moves is released when it has moved.

    staging_bytes: of the host memory through which states of requests pass; moves that find none
        free are launched when there is.
    """

    def __init__(self, pool: StatePool, lane: Lane, staging_bytes: int = _STAGING_BYTES) -> None:
        self.lane = lane
        self._pool = pool
        rows = max(2, min(_STAGED_ROWS, staging_bytes // max(1, pool.row_bytes)))
        self._staging = HostRows(rows, pool.width, lane.allocate)
        self.most = rows // 2  # states that one move may have
        self._moving: dict[int, Move] = {}  # the last move of each row
        self._leaving: set[int] = set()  # rows to release when they have moved
        self._launched: deque[Move] = deque()
        self._waiting: deque[tuple[Move, _Staged]] = deque()

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._launched or self._waiting)

    def bring(self, states: Sequence[Tensor], rows: Sequence[int]) -> Move:
        """Put states, each (width) float32 in host memory, into pool rows; at most `most`."""
        move = Move(self, rows)
        if not self.lane.staged:
            return move.at_once(lambda: self._put(states, rows))

        def launch(places: list[int]) -> Mark:
            for place, state in zip(places, states, strict=True):
                self._staging[place].copy_(_checked(state, self._pool.width))
            return self._in(self._staging, places, rows)

        return self._stage(move, launch)

    def take(self, rows: Sequence[int]) -> Move:
        """Copy pool rows to memory of their own: the move's `states`; at most `most`."""
        move = Move(self, rows)
        if not self.lane.staged:
            return move.at_once(lambda: self._copy(move))

        def launch(places: list[int]) -> Mark:
            def own() -> None:
                if move.error is None:
                    move.states = [self._staging[place].clone() for place in places]

            move.endings.insert(0, own)  # before their staging is free
            return self._out(rows, self._staging, places)

        return self._stage(move, launch)

    def fetch(self, host: HostRows, places: Sequence[int], rows: Sequence[int]) -> Move:
        """Copy rows of the lane's host memory into pool rows."""
        return self._launch(Move(self, rows), lambda: self._in(host, places, rows))

    def store(self, rows: Sequence[int], host: HostRows, places: Sequence[int]) -> Move:
        """Copy pool rows into rising rows of the lane's host memory."""
        return self._launch(Move(self, rows), lambda: self._out(rows, host, places))

    def then(self, move: Move, ending: Callable[[], None]) -> None:
        """Call `ending` on the engine's thread when `move` has ended; now, if it has."""
        if move.done():
            ending()
        else:
            move.endings.append(ending)

    def release(self, row: int) -> None:
        """Give a pool row back, as soon as nothing moves it any more."""
        move = self._moving.get(row)
        if move is None or move.done():
            self._pool.release(row)
        else:
            self._leaving.add(row)

    def poll(self) -> None:
        """End what has arrived, and launch what waited for memory. Never waits."""
        while self._launched and self._launched[0].done():
            self._launched.popleft()
        while self._waiting and self._staging.free >= len(self._waiting[0][0].rows):
            self._launch_staged(*self._waiting.popleft())

    def wait_for_staging(self) -> None:
        """Hold the host up until a move has ended, so that another one may be launched."""
        if self._launched:
            self._launched[0].wait()
        self.poll()

    def finish(self) -> None:
        """Hold the host up until nothing is on its way."""
        while self.busy:
            self.wait_for_staging()

    def ended(self, move: Move) -> None:
        """Called by a move: its rows may be released, unless another one moves them."""
        for row in move.rows:
            if self._moving.get(row) is move:
                del self._moving[row]
                if row in self._leaving:
                    self._leaving.remove(row)
                    self._pool.release(row)

    def _stage(self, move: Move, launch: _Staged) -> Move:
        for row in move.rows:
            self._moving[row] = move
        if self._waiting or self._staging.free < len(move.rows):
            self._waiting.append((move, launch))
            return move
        return self._launch_staged(move, launch)

    def _launch_staged(self, move: Move, launch: _Staged) -> Move:
        try:
            places = self._staging.acquire(len(move.rows))
        except Exception as error:
            move.end(error)
            return move
        move.endings.append(lambda: self._staging.release(places))
        return self._launch(move, lambda: launch(places))

    def _launch(self, move: Move, copies: Callable[[], Mark]) -> Move:
        for row in move.rows:
            self._moving[row] = move
        move.launch(copies)
        if not move.done():
            self._launched.append(move)
        return move

    def _put(self, states: Sequence[Tensor], rows: Sequence[int]) -> None:
        for state, row in zip(states, rows, strict=True):
            self._pool.rows[row] = _checked(state, self._pool.width)

    def _copy(self, move: Move) -> None:
        move.states = [self._pool.rows[row].clone() for row in move.rows]

    def _in(self, host: HostRows, places: Sequence[int], rows: Sequence[int]) -> Mark:
        def copy() -> None:
            for place, row in zip(places, rows, strict=True):
                self._pool.rows[row].copy_(host[place], non_blocking=True)

        return self.lane.run(copy)

    def _out(self, rows: Sequence[int], host: HostRows, places: Sequence[int]) -> Mark:
        def copy() -> None:
            if len(rows) == 1:
                host[places[0]].copy_(self._pool.rows[rows[0]], non_blocking=True)
                return
            wanted = indices(rows, self._pool.rows.device)
            gathered = self._pool.rows.index_select(0, wanted)
            for memory, first, end in host.runs(places):
                memory.copy_(gathered[first:end], non_blocking=True)

        return self.lane.run(copy)


def _checked(state: Tensor, width: int) -> Tensor:
    if state.shape != (width,):
        raise ValueError(f"a state has {width} numbers, and this one is {tuple(state.shape)}")
    return state
