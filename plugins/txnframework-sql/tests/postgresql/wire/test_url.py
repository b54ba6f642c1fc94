"""URLs as libpq knows them: what they name, what may be shown of them, and what is refused."""

from __future__ import annotations

import pytest

from txnframework.errors import InvalidInput
from txnframework_sql.postgresql._url import locate

SECRET = "s3cr3tpart"


@pytest.fixture(autouse=True)
def _no_port_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPORT", raising=False)


@pytest.mark.parametrize(
    ("url", "hosts", "ports", "user", "database", "shown"),
    [
        ("postgresql://host/db", ("host",), (5432,), None, "db", "postgresql://host:5432/db"),
        ("postgres://u@host:1/db", ("host",), (1,), "u", "db", "postgresql://u@host:1/db"),
        ("postgresql+asyncpg://host", ("host",), (5432,), None, None, "postgresql://host:5432/"),
        ("postgresql://a:1,b:2/db", ("a", "b"), (1, 2), None, "db", "postgresql://a:1,b:2/db"),
        ("postgresql://a,b/db?port=7", ("a", "b"), (7, 7), None, "db", "postgresql://a:7,b:7/db"),
        ("postgresql://[::1]:7/db", ("::1",), (7,), None, "db", "postgresql://[::1]:7/db"),
        ("postgresql://[2001:db8::2]/db", ("2001:db8::2",), (5432,), None, "db", "postgresql://[2001:db8::2]:5432/db"),
        ("postgresql:///db?host=/run/pg", ("/run/pg",), (5432,), None, "db", "postgresql:///db?host=/run/pg"),
        (
            "postgresql:///db?host=/run/pg&port=7",
            ("/run/pg",),
            (7,),
            None,
            "db",
            "postgresql:///db?host=/run/pg&port=7",
        ),
        ("postgresql://%2Frun%2Fpg/db", ("/run/pg",), (5432,), None, "db", "postgresql:///db?host=/run/pg"),
        ("postgresql:///?host=h&dbname=x&user=u", ("h",), (5432,), "u", "x", "postgresql://u@h:5432/x"),
        ("postgresql://a%40b@h/d%2Fe", ("h",), (5432,), "a@b", "d/e", "postgresql://a%40b@h:5432/d%2Fe"),
        ("postgresql:///db", (), (), None, "db", "postgresql:///db"),
        ("postgresql://", (), (), None, None, "postgresql:///"),
    ],
)
def test_what_a_url_names(
    url: str, hosts: tuple[str, ...], ports: tuple[int, ...], user: str | None, database: str | None, shown: str
) -> None:
    """Hosts, ports, user and database, each from where libpq looks for it; what is not there is left to the driver."""
    found = locate(url)
    assert (found.hosts, found.ports, found.user, found.database) == (hosts, ports, user, database)
    assert found.shown_url == shown
    assert repr(found) == f"Server(shown_url={shown!r})"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h/db",
        f"postgresql://u@h/db?password={SECRET}",
        f"postgresql://u:a%40{SECRET}%2F@h:5432/db?sslpassword={SECRET}&sslmode=require",
        f"postgresql:///db?host=/x&user=u&password={SECRET}&passfile=/{SECRET}",
    ],
)
def test_secrets_are_not_shown(url: str) -> None:
    """Neither the URL that is shown nor any text of the object has a password in it."""
    found = locate(url)
    assert SECRET not in f"{found.shown_url} {found} {found!r}"
    assert SECRET in (found.password or "")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:a@{SECRET}@h/db",
        f"postgresql://u:a/{SECRET}@h/db",
        f"postgresql://u:a#{SECRET}@h/db",
        f"postgresql://u:a?{SECRET}@h/db",
        f"postgresql://u:a?{SECRET}=1@h/db",
        f"postgresql://u:a?sslmode={SECRET}@h/db",
        f"postgresql://u:{SECRET}",
        f"postgresql://u:a:{SECRET}",
        f"postgresql://[{SECRET}/db",
        f"postgresql://u:{SECRET}@[::1/db",
        f"postgresql://u:{SECRET}@h:x/db",
        f"postgresql://u:{SECRET}@h:70000/db",
        f"postgresql://u:{SECRET}@a,b,c/db?port=1,2",
        f"postgresql://u:{SECRET}@h/db?sslmode=maybe",
        f"postgresql://u:{SECRET}@h/db?keepalives_idle={SECRET}",
        f"postgresql://u:{SECRET}@h/db?nonsense=1",
        f"mysql://u:{SECRET}@h/db",
        SECRET,
    ],
)
def test_what_cannot_be_used(url: str) -> None:
    """One sentence that says what to write, in which nothing stands that may be a piece of a password."""
    with pytest.raises(InvalidInput) as raised:
        locate(url)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
    assert "\n" not in str(raised.value)


def test_a_parameter_that_is_not_known_is_named() -> None:
    """A parameter with an ordinary name is said to be the one."""
    with pytest.raises(InvalidInput, match="'target_session_attr' of"):
        locate("postgresql://h/db?target_session_attr=any")
