"""Dispatch a request by path and method, or explain why no route matches."""

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from sruserve.server.errors import ServeError
from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.errors import MethodNotAllowed, RouteNotFound
from sruserve.server.http.observed import refuse
from sruserve.server.http.openapi_parts import Json
from sruserve.server.http.routes import Handler, Mounted, Route
from sruserve.server.http.slow_routes import create_slow_routes

_MAX_PATH_CHARACTERS = 200  # of a path in an error message
_PARAMETER = re.compile(r"\{\w+\}")
# Of paths that clients of other servers ask for.
_ADVICE = {
    "/v1/chat/completions": "chat is not supported: send a prompt to /v1/completions",
}


class _Path(NamedTuple):
    """The handlers of one path by method. values: the match's groups with its parameters."""

    handlers: dict[str, Handler | None]  # None: a route of `slow`
    values: slice


class Router:
    """An ASGI application of the fast routes; `slow` answers all others.

    answering: a context that counts a request while it is answered.
    slow: also answers requests without a route, with the error of `explain`.
    document: creates the OpenAPI document of the whole server.
    fallbacks: handlers of requests without a route, by the prefix of their path.
    """

    def __init__(
        self,
        mounted: Iterable[Mounted],
        answering: AbstractContextManager[None],
        slow: Iterable[Mounted] = (),
        document: Callable[[], Json] = dict,
    ) -> None:
        slow = tuple(slow)
        self.slow = create_slow_routes(slow, document, self.explain)
        entries: list[tuple[Route[Any], Handler | None]] = [*mounted]
        entries += [(route, None) for route, _ in slow]
        self.routes = tuple(route for route, _ in entries)
        self._answering = answering
        self.fallbacks: dict[str, Handler] = {}
        handlers: dict[str, dict[str, Handler | None]] = {}
        for route, handler in entries:
            methods = handlers.setdefault(route.path, {})
            assert route.method not in methods, f"{route.method} {route.path} is mounted twice"
            methods |= dict.fromkeys(route.methods, handler)
        self._paths: dict[int | None, _Path] = {}
        patterns, groups = [], 0
        # "{" sorts after all letters, so a fixed path matches before one with a parameter
        for path in sorted(handlers):
            fixed = _PARAMETER.split(path)
            patterns.append("([^/]+)".join(map(re.escape, fixed)) + "()")
            end = groups + len(fixed)  # the group that identifies the path
            self._paths[end] = _Path(handlers[path], slice(groups, end - 1))
            groups = end
        self._pattern = re.compile("|".join(patterns))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        match = self._pattern.fullmatch(path)
        if match is not None:
            entry = self._paths[match.lastindex]
            handler = entry.handlers.get(scope["method"])
            if handler is not None:
                call = HttpCall(scope, receive, send, match.groups()[entry.values])
                with self._answering:
                    await handler(call)
                return
        for prefix, fallback in self.fallbacks.items():
            if path == prefix or path.startswith(prefix + "/"):
                await fallback(HttpCall(scope, receive, send))
                return
        if match is None:  # FastAPI would find /docs behind a line break, too
            call = HttpCall(scope, receive, send)
            await refuse(call, self.explain(call))
            return
        with self._answering:
            await self.slow(scope, receive, send)

    def explain(self, call: HttpCall) -> ServeError:
        """The error of a request without a route."""
        where = f"{call.method} {call.path[:_MAX_PATH_CHARACTERS]}"
        match = self._pattern.fullmatch(call.path)
        if match is None:
            advice = _ADVICE.get(call.path, "/docs lists all routes")
            return RouteNotFound(f"there is nothing at {where}; {advice}")
        allowed = list(self._paths[match.lastindex].handlers)
        return MethodNotAllowed(
            f"{where} is not allowed; use {', '.join(allowed)}", allowed=allowed
        )
