"""URLs in libpq's form: what they name, what may be shown of them, and what is refused."""

from __future__ import annotations

from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest

from txnframework.errors import InvalidInput
from txnframework_sql.postgresql._server import locate

SECRET = "s3cr3tpart"


@pytest.fixture(autouse=True)
def _no_port_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPORT", raising=False)


@pytest.mark.parametrize(
    ("url", "places", "shown"),
    [
        ("postgresql://host/db", ["host"], "postgresql://host/db"),
        ("postgres://u@host:1/db", ["host:1"], "postgresql://u@host:1/db"),
        ("postgresql+asyncpg://host", ["host"], "postgresql://host/"),
        ("postgresql://a:1,b:2/db", ["a:1", "b:2"], "postgresql://a:1,b:2/db"),
        ("postgresql://a,b/db?port=7", ["a:7", "b:7"], "postgresql://a,b/db?port=7"),
        ("postgresql://a,b:1/db?port=7,8", ["a:7", "b:1"], "postgresql://a,b:1/db?port=7,8"),
        ("postgresql://[::1]:7/db", ["[::1]:7"], "postgresql://[::1]:7/db"),
        ("postgresql://[2001:db8::2]/db", ["[2001:db8::2]"], "postgresql://[2001:db8::2]/db"),
        ("postgresql:///db?host=/run/pg", ["/run/pg"], "postgresql:///db?host=/run/pg"),
        ("postgresql:///db?host=/run/pg&port=7", ["/run/pg:7"], "postgresql:///db?host=/run/pg&port=7"),
        ("postgresql://%2Frun%2Fpg/db", ["/run/pg"], "postgresql://%2Frun%2Fpg/db"),
        ("postgresql:///?host=h&dbname=x&user=u", ["h"], "postgresql://u@/x?host=h"),
        ("postgresql://a%40b@h/d%2Fe", ["h"], "postgresql://a%40b@h/d%2Fe"),
        ("postgresql:///db", [""], "postgresql:///db"),
        ("postgresql://", [""], "postgresql:///"),
    ],
)
def test_what_a_url_names(url: str, places: list[str], shown: str) -> None:
    """The driver gets one URL for each host; the shown URL names all hosts."""
    found = locate(url)
    queries = [dict(parse_qsl(urlsplit(one).query)) for one in found.urls]
    assert [":".join(query[name] for name in ("host", "port") if name in query) for query in queries] == places
    assert found.shown_url == shown
    assert repr(found) == f"Server(shown_url={shown!r})"


def test_what_is_for_the_driver() -> None:
    """The driver reads login, database and its parameters; the plugin's own parameters are not sent to the server."""
    (url,) = locate("postgresql://u:p%40@h/db?options=-d%205&connect_timeout=3&keepalives_idle=7").urls
    assert url == "postgresql://u:p%40@/db?options=-d+5&host=h"
    assert locate("postgresql:///?dbname=x&host=h").urls == ("postgresql://@?dbname=x&host=h",)


@pytest.mark.parametrize(
    ("options", "settings", "others"),
    [
        ("-csearch_path=one", [("search_path", "one")], ""),
        ("-c search_path=one,two --work-mem=1MB", [("search_path", "one,two"), ("work_mem", "1MB")], ""),
        (r"-c search_path=a\ b\\c -c x.y=", [("search_path", r"a b\c"), ("x.y", "")], ""),
        ("endpoint=x -cjit=on -d 5", [("jit", "on")], "endpoint=x -d 5"),
        ("-c", [], "-c"),
    ],
)
def test_settings_among_the_options(options: str, settings: list[tuple[str, str]], others: str) -> None:
    """Settings are made by this plugin, after connecting; the driver sends all other options to the server."""
    found = locate(f"postgresql://h/db?{urlencode({'options': options})}")
    assert list(found.settings) == settings
    assert parse_qs(urlsplit(found.urls[0]).query).get("options", [""]) == [others]


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
    """Neither the shown URL nor any text of the object contains a password."""
    found = locate(url)
    assert SECRET not in f"{found.shown_url} {found} {found!r}"
    assert found.has_password
    assert SECRET in found.urls[0]


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
    """The error is one sentence that says what to write, without any part that may belong to a password."""
    with pytest.raises(InvalidInput) as raised:
        locate(url)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
    assert "\n" not in str(raised.value)


def test_a_parameter_that_is_not_known_is_named() -> None:
    """The error names an unknown parameter if it has an ordinary name."""
    with pytest.raises(InvalidInput, match="'target_session_attr' of"):
        locate("postgresql://h/db?target_session_attr=any")
