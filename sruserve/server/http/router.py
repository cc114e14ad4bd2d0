"""Find what answers a request: a method of a path, or else why there is none."""

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pydantic import BaseModel

from sruserve.server.errors import MethodNotAllowed, RouteNotFound, ServeError, faults
from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.openapi_parts import Json
from sruserve.server.http.pages import create_pages
from sruserve.server.http.routes import Handler, Mounted, Route
from sruserve.server.tasks.caller import ClientDisconnected
from sruserve.server.tasks.error_mapping import as_serve_error

_MOST_PATH = 200  # characters of a path that an error repeats
_PARAMETER = re.compile(r"\{\w+\}")


class _Place(NamedTuple):
    """What is at one path. values: where a match has the values of its parameters."""

    handlers: dict[str, Handler | None]  # None: a page
    values: slice


class Router:
    """An ASGI application of the routes that have to be fast; all others are left to `pages`.

    answering: `with` it, a request is answered.
    pages: also answers requests without a route, with what `explain` returns.
    document: makes the OpenAPI document of the whole server.
    absent: by the beginnings of paths, what answers a request that has no route there.
    """

    def __init__(
        self,
        mounted: Iterable[Mounted],
        answering: AbstractContextManager[None],
        pages: Iterable[Mounted] = (),
        document: Callable[[], Json] = dict,
    ) -> None:
        pages = tuple(pages)
        self.pages = create_pages(pages, document, self.explain)
        every: list[tuple[Route[Any], Handler | None]] = [*mounted]
        every += [(route, None) for route, _ in pages]
        self.routes = tuple(route for route, _ in every)
        self._answering = answering
        self.absent: dict[str, Handler] = {}
        handlers: dict[str, dict[str, Handler | None]] = {}
        for route, handler in every:
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
        for prefix, absent in self.absent.items():
            if path == prefix or path.startswith(prefix + "/"):
                await absent(HttpCall(scope, receive, send))
                return
        with self._answering:
            await self.pages(scope, receive, send)

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
