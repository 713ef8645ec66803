"""The HTTP server that `nonet.daemon.health` starts on the port of a daemon."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from nonet.daemon.answer import Answer

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
# How long a connection may be silent.
_SILENT_SECONDS = 5.0

_Answers = Callable[[str, str], Answer]


class ProbeServer(ThreadingHTTPServer):
    """One thread per connection, with a limit on connections.

    When there are too many, the server closes the oldest connection. A new client is therefore
    always answered, and slow clients cannot keep others out.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_CONNECTIONS

    def __init__(
        self, address: tuple[str, int], family: socket.AddressFamily, answer: _Answers
    ) -> None:
        self.answer = answer
        self._open: dict[
            socket.socket, None
        ] = {}  # the connections that have a thread, oldest first
        self.address_family = family
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # `HTTPServer` would look up the host name in DNS

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            for oldest in list(self._open)[:1]:
                self._cut_off(oldest)
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self._open):
            self._cut_off(connection)

    def _cut_off(self, connection: socket.socket) -> None:
        """End the thread of a connection: each read or write of it now fails at once."""
        self._open.pop(connection, None)
        with suppress(OSError):  # the client has closed it meanwhile
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("probe aborted", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: ProbeServer
    timeout = _SILENT_SECONDS
    server_version = "nonet"
    sys_version = ""

    def do_GET(self) -> None:
        path, accept = self.path.partition("?")[0], self.headers.get("Accept", "")
        answer = self.server.answer(path, accept)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("probe: " + format, *args)  # noqa: G003  # the form is the library's
