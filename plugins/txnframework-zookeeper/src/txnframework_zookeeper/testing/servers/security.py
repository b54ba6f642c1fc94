"""Settings of a test's ZooKeeper that require a login (SASL) or enable TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txnframework_zookeeper.testing.servers.zookeeper import Setup, java_tool

_PASSWORD = "of-a-test"  # noqa: S105 - of a key that lives as long as a test
_ALIAS = "server"


def sasl_users(directory: Path, users: Mapping[str, str]) -> Setup:
    """Return settings that let only these users log in, by DIGEST-MD5, with these passwords."""
    lines = "".join(f'    user_{name}="{password}"\n' for name, password in users.items())
    file = directory / "users.jaas"
    file.write_text(
        f"Server {{\n    org.apache.zookeeper.server.auth.DigestLoginModule required\n{lines.rstrip()};\n}};\n"
    )
    settings = {
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth": "true",
    }
    return Setup(settings, (f"-Djava.security.auth.login.config={file}",))


@dataclass(frozen=True)
class Tls:
    """A server's key, and the certificate (PEM) with which clients verify it."""

    setup: Setup
    certificate: Path


def tls(directory: Path) -> Tls:
    """Create a key for this machine; servers with its setup also accept TLS, at their ``secure_host``."""
    keys, certificate = directory / "server.p12", directory / "server.pem"
    of_keys = ("-keystore", str(keys), "-storetype", "PKCS12", "-storepass", _PASSWORD, "-alias", _ALIAS)
    name = ("-dname", "CN=localhost", "-ext", "SAN=dns:localhost,ip:127.0.0.1", "-validity", "30")
    _keytool("-genkeypair", *of_keys, *name, "-keyalg", "RSA", "-keysize", "2048")
    _keytool("-exportcert", *of_keys, "-rfc", "-file", str(certificate))
    settings = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(keys),
        "ssl.keyStore.password": _PASSWORD,
        "ssl.clientAuth": "none",
    }
    return Tls(Setup(settings, is_secure=True), certificate)


def _keytool(*arguments: str) -> None:
    command = [java_tool("keytool"), *arguments]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - Java's own tool, arguments of our own
