"""What all hot routes share: validate, choose the model, count the outcome, tell every error."""

from asyncio import to_thread
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from sruserve.server.api.call import Call, ClientGone
from sruserve.server.api.problems import as_serve_error
from sruserve.server.api.served import Catalogue, InputLimits, Served
from sruserve.server.engine.jobs import Job
from sruserve.server.metrics import UNKNOWN_MODEL, RouteMetrics

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")


class Route(Generic[Body]):
    """`POST path` for models of one task. Subclasses answer; this class does the rest."""

    path: ClassVar[str]
    task: ClassVar[str]
    schema: ClassVar[type[BaseModel]]

    def __init__(
        self, catalogue: Catalogue, limits: InputLimits, queue_timeout_seconds: float = 0.0
    ) -> None:
        self.catalogue = catalogue
        self.limits = limits
        self.queue_timeout_seconds = queue_timeout_seconds
        self._validate: Callable[[bytes], Body] = self.schema.__pydantic_validator__.validate_json
        self.metrics = {name: RouteMetrics(name, self.path) for name in (*catalogue, UNKNOWN_MODEL)}

    async def __call__(self, call: Call) -> None:
        """Answer a request, whatever happens, and count it once."""
        name, outcome, reason = UNKNOWN_MODEL, "ok", None
        try:
            body = await call.body(self.limits.body_bytes)
            request = self._validate(body)
            served = self.catalogue.choose(request.model, self.task)  # type: ignore[attr-defined]
            name = served.name
            served.engine.check_admission(len(body))
            await self.answer(call, request, served, len(body))
        except ClientGone:
            outcome = "cancelled"
        except Exception as error:
            problem = as_serve_error(error, self.schema)
            outcome, reason = problem.outcome, problem.code
            if not call.started:
                await call.refuse(problem)
        except BaseException:  # the server is stopping and cancelled this task
            outcome = "cancelled"
            raise
        finally:
            self.metrics[name].finish(outcome, perf_counter() - call.begin, reason)

    async def answer(self, call: Call, request: Body, served: Served, cost: int) -> None:
        """Send the reply to a valid request, or raise."""
        raise NotImplementedError

    def deadline(self) -> float:
        """When a job that has not begun is given up, on `time.monotonic()`; 0 is never."""
        if not self.queue_timeout_seconds:
            return 0.0
        return monotonic() + self.queue_timeout_seconds


async def off_loop(long: bool, work: Callable[..., T], *given: Any) -> T:
    """Do `work` here if it is short, on another thread if it would hold up the event loop."""
    return await to_thread(work, *given) if long else work(*given)


async def run_job(call: Call, served: Served, job: Job) -> None:
    """Hand a job to the engine and wait until its last result was delivered."""
    served.engine.submit(job)
    await call.wait(job.done)
