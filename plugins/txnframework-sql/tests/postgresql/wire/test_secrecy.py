"""Servers on other machines without TLS: a warning by default, a refusal with ``require_tls``."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from txnframework.errors import InvalidInput
from txnframework_sql._options import PostgresqlOptions
from txnframework_sql.postgresql import _setup
from txnframework_sql.postgresql._server import locate

# This machine under a name that does not say so.
FAR = "0.0.0.0"


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_setup, "_warned", set())


async def test_a_password_in_clear_is_warned_of_once(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The warning is logged once, says what to set, and does not contain the password."""
    port = wire.address[1]

    for _ in range(2):
        url = wire.url_with(address=(FAR, port))
        async with wire.connected(url) as connections, connections.lend(), connections.lend():
            pass
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "sslmode=verify-full" in caplog.text
    assert wire.password not in caplog.text


async def test_this_machine_is_not_warned_of(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A connection within this machine needs no warning, and ``require_tls`` accepts it."""
    async with wire.connected(require_tls=True) as connections, connections.lend():
        assert caplog.records == []


@pytest.mark.parametrize("query", ["", "sslmode=disable", "sslmode=allow", "sslmode=prefer"])
async def test_clear_is_refused_where_that_is_set(wire: Any, query: str) -> None:
    """The refusal happens before anything is sent, whatever the server supports."""
    url = wire.url_with(address=(FAR, wire.address[1]), query=query)

    async with wire.connected(url, require_tls=True) as connections:
        with pytest.raises(InvalidInput, match=r"require_tls is set.*sslmode=verify-full") as refused:
            async with connections.lend():
                pass
        assert wire.password not in str(refused.value)


@pytest.mark.parametrize(("mode", "warnings"), [("require", 1), ("verify-ca", 1), ("verify-full", 0)])
async def test_an_unproved_server_is_warned_of_once(
    wire: Any, caplog: pytest.LogCaptureFixture, mode: str, warnings: int
) -> None:
    """With ``require_tls``, a mode that does not prove which server answers causes one warning, with the remedy."""
    for _ in range(2):
        url = wire.url_with(address=(FAR, wire.address[1]), query=f"sslmode={mode}&sslrootcert={__file__}")
        async with wire.connected(url, require_tls=True) as connections:
            with pytest.raises(InvalidInput):  # the server of these tests has no TLS
                await connections.connect()
    assert ["does not prove" in one and "verify-full" in one for one in caplog.messages] == [True] * warnings


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_demanding_tls_is_enough(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The sslmode of the URL, or of the environment if the URL omits it, is sufficient."""
    locate(f"postgresql://u@db.example,localhost/d?sslmode={mode}").require_tls()
    with pytest.raises(InvalidInput):
        locate("postgresql://u@db.example,localhost/d").require_tls()
    monkeypatch.setenv("PGSSLMODE", mode)
    locate("postgresql://u@db.example,localhost/d").require_tls()


def test_where_the_environment_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL without a host uses PGHOST; without both, a socket of this machine."""
    assert not PostgresqlOptions().require_tls
    monkeypatch.delenv("PGHOST", raising=False)
    locate("postgresql:///d").require_tls()
    monkeypatch.setenv("PGHOST", "/run/postgresql,db.example")
    with pytest.raises(InvalidInput):
        locate("postgresql:///d").require_tls()
