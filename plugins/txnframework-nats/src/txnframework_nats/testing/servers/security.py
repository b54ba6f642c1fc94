"""Settings of a test's NATS server that require a login or TLS."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from txnframework_nats.testing.servers.nats import Setup


@dataclass(frozen=True)
class Tls:
    """The setup of a server that requires TLS, and the certificate (PEM) with which clients verify it."""

    setup: Setup
    certificate: Path


def tls(directory: Path) -> Tls:
    """Create a key and a certificate for ``localhost`` and 127.0.0.1."""
    key, certificate = directory / "server.key", directory / "server.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost",
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - a tool of the system, arguments of our own
    return Tls(Setup(lines=(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}',)), certificate)


def user(name: str, password: str) -> Setup:
    """Return settings that let only this user log in."""
    return Setup(lines=(f'authorization {{ user: "{name}", password: "{password}" }}',))


def token(secret: str) -> Setup:
    """Return settings that let only clients with this token log in."""
    return Setup(lines=(f'authorization {{ token: "{secret}" }}',))


def nkey(public: str) -> Setup:
    """Return settings that let only the user with this public key log in."""
    return Setup(lines=(f"authorization {{ users: [ {{ nkey: {public} }} ] }}",))
