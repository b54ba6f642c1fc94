from __future__ import annotations

import asyncio

import pytest

import txnframework
from txnframework.config import is_own_machine, load_config, redact_url, store_name
from txnframework.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "memory:"),
        ("sqlite:///dir/txn.db", "sqlite:///dir/txn.db"),
        ("sqlite:///dir/a@b:c.db", "sqlite:///dir/a@b:c.db"),
        ("sqlite:///dir/a:sesame@c.db", "sqlite:///dir/a:***@c.db"),
        ("zookeeper://host:2181/chroot", "zookeeper://host:2181/chroot"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:sesame@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:se/sa?me@x@host/db", "postgresql://user:***@host/db"),
        ("postgresql://:sesame@host/db", "postgresql://:***@host/db"),
        ("postgresql://host/db?user=u&password=sesame&a=b", "postgresql://host/db?user=u&password=***&a=b"),
        ("x://host/?sslPassword=sesame;auth_token=sesame", "x://host/?sslPassword=***;auth_token=***"),
        ("memory:?secret=sesame", "memory:?secret=***"),
        ("postgres//user:sesame@host/db", "postgres//user:***@host/db"),
        ("postgresql:/user:sesame@host/db", "postgresql:***@host/db"),
        ("postgresql:user:sesame@host", "postgresql:***@host"),
        ("zookeeper//user:sesame@host:2181/x", "zookeeper//user:***@host:2181/x"),
        ("user:sesame@host/db", "user:***@host/db"),
        ("postgresql://user:sesame", "postgresql://user:***"),
        ("postgresql://user:sesame/db", "postgresql://user:***"),
        ("postgresql://host/db?pasword=sesame", "postgresql://host/db?pasword=***"),
        ("zookeeper://host/x?auth=digest:u:sesame", "zookeeper://host/x?auth=***"),
        ("host=db user=me password=sesame", "host=db user=me password=***"),
        ("host=db password = 'sesame and' port=1", "host=db password =***"),
        ("PGPASSWORD=sesame host=db", "PGPASSWORD=***"),
        ("Server=h;User Id=u;Password=sesame;", "Server=h;User Id=u;Password=***"),
        ("postgresql://one:5432,[::1]:2,three/db", "postgresql://one:5432,[::1]:2,three/db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    """A password is hidden even if it was not quoted correctly; the rest remains readable."""
    assert redact_url(url) == shown
    assert "sesame" not in redact_url(url)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("memory:", "memory"),
        ("sqlite:///dir/txn.db", "sqlite"),
        ("postgresql+psycopg://user@host/db", "postgresql"),
        ("SQLite:///x", "sqlite"),
        ("no url", ""),
        ("postgres//user:sesame@host", ""),
        ("host=db password=se:same", ""),
        ("://host", ""),
        ("", ""),
    ],
)
def test_scheme_names_the_store(url: str, name: str) -> None:
    """The scheme names the store, for any driver and letter case."""
    assert store_name(url) == name


@pytest.mark.parametrize("section", ["metadata", "ledger"])
@pytest.mark.parametrize(
    "url",
    [
        "postgres//user:sesame@host/db",
        "postgresq:/user:sesame@host/db",
        "host=db user=me password=sesame",
        "host=db password=ses:ame",
        "zookeper//user:sesame@host:2181/x",
        "mysql://user:sesame@host",
        "user:sesame@host/db",
    ],
)
def test_a_mistyped_url_keeps_its_secret(section: str, url: str) -> None:
    """Neither the error nor the printed configuration contains the password."""
    config = load_config({section: {"url": url}})

    async def main() -> None:
        async with txnframework.open({section: {"url": url}}):
            pass

    with pytest.raises(ConfigurationError) as refused:
        asyncio.run(main())
    for text in (repr(config), str(config), str(refused.value), repr(refused.value)):
        assert "sesame" not in text
        assert "ses:ame" not in text
        assert "host=db password=ses" not in text


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.3.2.1", "[::1]", "::1", "/run/pg", "")),
        *((host, False) for host in ("db.example", "10.0.0.1", "0.0.0.0", "[fe80::1%eth0]", "localhost.example")),
    ],
)
def test_which_hosts_are_this_machine(host: str, is_own: bool) -> None:
    """Only certain names count, because data sent to other machines can be intercepted."""
    assert is_own_machine(host) is is_own
