from __future__ import annotations

import pytest

from txnframework.config import redact_url, store_name


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "memory:"),
        ("sqlite:///dir/txn.db", "sqlite:///dir/txn.db"),
        ("sqlite:///dir/a@b:c.db", "sqlite:///dir/a@b:c.db"),
        ("zookeeper://host:2181/chroot", "zookeeper://host:2181/chroot"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:sesame@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:se/sa?me@x@host/db", "postgresql://user:***@host/db"),
        ("postgresql://:sesame@host/db", "postgresql://:***@host/db"),
        ("postgresql://host/db?user=u&password=sesame&a=b", "postgresql://host/db?user=u&password=***&a=b"),
        ("x://host/?sslPassword=sesame;auth_token=sesame", "x://host/?sslPassword=***;auth_token=***"),
        ("memory:?secret=sesame", "memory:?secret=***"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    """A password is hidden also where it should have been quoted and was not; the rest stays readable."""
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
        ("", ""),
    ],
)
def test_scheme_names_the_store(url: str, name: str) -> None:
    """The store is named by the scheme, whatever driver and letter case are written."""
    assert store_name(url) == name
