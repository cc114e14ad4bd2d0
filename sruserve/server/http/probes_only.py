"""Answer only probes on connections whose clients have sent no certificate."""

from collections.abc import Awaitable, Callable

from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.errors import ClientCertificateRequired
from sruserve.server.http.observed import refuse

# Kubernetes and a container's health check have no certificate.
_PROBES = ("/livez", "/readyz", "/health", "/v2/health/live", "/v2/health/ready")

App = Callable[[Message, Receive, Send], Awaitable[None]]


class ProbesOnly:
    """An ASGI application that passes probes to `app`, and refuses everything else."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return

        async def refuse_socket(message: Message) -> None:
            await send({**message, "type": f"websocket.{message['type']}"})

        is_socket = scope["type"] == "websocket"
        head = {**scope, "method": "GET"} if is_socket else scope
        await refuse(
            HttpCall(head, receive, refuse_socket if is_socket else send),
            ClientCertificateRequired(
                "this server requires a client certificate (SRUSERVE_TLS_CLIENT_CA): connect with "
                "one; without it, only probes are answered"
            ),
        )
