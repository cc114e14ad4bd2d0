"""Find what answers a request: a method of a path, 405 with the path's methods, or 404."""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

from pydantic import BaseModel

from sruserve.server.errors import MethodNotAllowed, RouteNotFound, ServeError, faults
from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.routes import Handler, Mounted
from sruserve.server.tasks.caller import ClientDisconnected
from sruserve.server.tasks.error_mapping import as_serve_error

_MOST_PATH = 200  # characters of a path that an error repeats
_PARAMETER = re.compile(r"\{\w+\}")


class _Place(NamedTuple):
    """What is at one path. values: where a match has the values of its parameters."""

    handlers: dict[str, Handler]
    values: slice


class Router:
    """An ASGI application of all routes.

    routes: all of them. answering: `with` it, a request is answered.
    absent: by the beginnings of paths, what answers a request that has no route there: it raises
        what `explain` returns. All other requests without a route get that error in `/v1`'s shape.
    """

    def __init__(self, mounted: Iterable[Mounted], answering: AbstractContextManager[None]) -> None:
        mounted = tuple(mounted)
        self.routes = tuple(route for route, _ in mounted)
        self._answering = answering
        self.absent: dict[str, Handler] = {}
        handlers: dict[str, dict[str, Handler]] = {}
        for route, handler in mounted:
            methods = handlers.setdefault(route.path, {})
            assert route.method not in methods, f"{route.method} {route.path} is there twice"
            methods[route.method] = handler
        self._places: dict[int | None, _Place] = {}
        patterns, groups = [], 0
        # "{" comes after all letters, so a fixed path is matched before one with a parameter
        for path in sorted(handlers):
            fixed = _PARAMETER.split(path)
            patterns.append("([^/]+)".join(map(re.escape, fixed)) + "()")
            end = groups + len(fixed)  # of the group that says which path it was
            self._places[end] = _Place(handlers[path], slice(groups, end - 1))
            groups = end
        self._pattern = re.compile("|".join(patterns))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        match = self._pattern.fullmatch(path)
        if match is not None:
            place = self._places[match.lastindex]
            handler = place.handlers.get(scope["method"])
            if handler is not None:
                call = HttpCall(scope, receive, send, match.groups()[place.values])
                with self._answering:
                    await handler(call)
                return
        call = HttpCall(scope, receive, send)
        for prefix, handler in self.absent.items():
            if path == prefix or path.startswith(prefix + "/"):
                await handler(call)
                return
        await call.refuse(self.explain(call))

    def explain(self, call: HttpCall) -> ServeError:
        """Why nothing answers a request."""
        where = f"{call.method} {call.path[:_MOST_PATH]}"
        match = self._pattern.fullmatch(call.path)
        if match is None:
            return RouteNotFound(f"there is nothing at {where}; /docs lists all routes")
        allowed = list(self._places[match.lastindex].handlers)
        return MethodNotAllowed(
            f"{where} is not allowed; use {', '.join(allowed)}", allowed=allowed
        )


def answering_errors(handler: Handler) -> Handler:
    """A handler whose errors are answered. No metric counts its requests."""

    async def answer(call: HttpCall) -> None:
        try:
            await handler(call)
        except ClientDisconnected:
            pass
        except faults() as error:
            if call.started:
                raise
            await call.refuse(as_serve_error(error, BaseModel))

    return answer
