"""A git server over https on the loopback, which wants a password."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def command_lines() -> list[bytes]:
    """What every local user can read of all processes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes())
        except OSError:  # it has ended
            continue
    return found


class SecureServer(ThreadingHTTPServer):
    """Serves the repositories below a directory by ``git http-backend``.

    Attributes:
        certificate: which clients must trust.
        wanted: user and password.
        authorized: the ``Authorization`` of each request, or None.
        seen: the command lines of all processes, at each request that was authorized.
        redirect_to: another server that every request is sent to.
    """

    daemon_threads = True

    def __init__(self, root: Path, certificate: Path, key: Path, wanted: tuple[str, str]) -> None:
        self.root = root
        self.certificate = certificate
        self.wanted = wanted
        self.authorized: list[str | None] = []
        self.seen: list[list[bytes]] = []
        self.redirect_to = ""
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def serving(root: Path, place: Path, wanted: tuple[str, str]) -> Iterator[SecureServer]:
    """A server with a certificate of its own, made in `place`."""
    certificate, key = place / "certificate.pem", place / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    server = SecureServer(root, certificate, key, wanted)
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: SecureServer

    def do_GET(self) -> None:
        said = self.headers["Authorization"]
        self.server.authorized.append(said)
        if self.server.redirect_to:
            self._answer(b"Status: 301\r\nLocation: " + self._elsewhere().encode() + b"\r\n\r\n")
        elif said != f"Basic {base64.b64encode(':'.join(self.server.wanted).encode()).decode()}":
            self._answer(b'Status: 401\r\nWWW-Authenticate: Basic realm="git"\r\n\r\n')
        else:
            self.server.seen.append(command_lines())
            self._answer(self._backend())

    do_POST = do_GET

    def _elsewhere(self) -> str:
        return self.server.redirect_to + self.path

    def _backend(self) -> bytes:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        body = self.rfile.read(length)
        git = ["git", "-c", "safe.directory=*", "http-backend"]
        return subprocess.run(git, input=body, env=environment, capture_output=True).stdout

    def _answer(self, answer: bytes) -> None:
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(lines.pop("Status", "200").split()[0]))
        for name, value in lines.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
