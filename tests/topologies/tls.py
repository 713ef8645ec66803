"""`Certificates` of an authority of our own, and `TlsServer`: a Redis that speaks TLS only."""

from __future__ import annotations

import ipaddress
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from servers import RedisServer

_DAY = timedelta(days=1)


class Certificates:
    """An authority, and what it has signed: files of a server and of a client on 127.0.0.1.

    Attributes:
        ca: certificate of the authority.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
        certificate = self._sign(self._name, self._key, ca=True)
        self.ca = self._write("ca.crt", certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for 127.0.0.1, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, ca=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return (
            self._write(f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}.key", pem),
        )

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(local, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, data: bytes) -> Path:
        path = self._home / name
        path.write_bytes(data)
        return path


class TlsServer(RedisServer):
    """Asks for a certificate of its clients, too; its authority is as old as the server.

    Attributes:
        query: what the end of a URL says of certificates.
    """

    def __init__(self, *options: str, certificates: Certificates | None = None) -> None:
        super().__init__(*options)
        self._own = certificates or Certificates(Path(tempfile.mkdtemp(dir=self._home)))
        self._certificate, self._key = self._own.issue(f"server-{id(self)}")
        client, client_key = self._own.issue(f"client-{id(self)}")
        self._files = {
            "ssl_ca_certs": str(self._own.ca),
            "ssl_certfile": str(client),
            "ssl_keyfile": str(client_key),
        }
        self.query = urlencode(self._files, safe="/")

    def change_authority(self) -> None:
        """Replace the files of server and clients under the same names, and cut all connections."""
        new = Certificates(Path(tempfile.mkdtemp(dir=self._home)))
        files = (self._certificate, self._key, *map(Path, self._files.values()))
        certificate, key = new.issue("server")
        client, client_key = new.issue("client")
        with self.client() as admin:
            admin.ping()
            for file, made in zip(
                files, (certificate, key, new.ca, client, client_key), strict=True
            ):
                file.write_bytes(made.read_bytes())
            loaded = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")
            admin.config_set(
                *[part for pair in zip(loaded, files, strict=False) for part in map(str, pair)]
            )
            admin.client_kill_filter(_type="normal", skipme=True)

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0?{self.query}"

    def _listen(self, port: int) -> str:
        files = f"--tls-cert-file {self._certificate} --tls-key-file {self._key}"
        return (
            f"--port 0 --tls-port {port} {files} --tls-ca-cert-file {self._own.ca} "
            "--tls-replication yes --tls-cluster yes"
        )

    def _connect(self, port: int, **options: Any) -> redis.Redis:
        return redis.Redis("127.0.0.1", port, ssl=True, **self._files, **options)
