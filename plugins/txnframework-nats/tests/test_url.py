"""URLs and options: what they name, and one sentence for each that cannot be used."""

from __future__ import annotations

import pytest

from txnframework.errors import ConfigurationError
from txnframework_nats._options import ConnectionOptions, check, locate, replicas_of


def test_servers() -> None:
    """A URL names servers with ports, a prefix and a login; the default port and prefix are filled in."""
    found = locate("nats://alice:p%40ss@one,two:5000,[::1]/mine", {})
    assert found.hosts == ("one:4222", "two:5000", "[::1]:4222")
    assert (found.prefix, found.user, found.password) == ("mine", "alice", "p@ss")
    assert found.shown_url == "nats://alice:***@one,two:5000,[::1]/mine"
    assert "p@ss" not in repr(found)
    assert locate("nats://one", {}).prefix == "txnframework"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nats:///prefix", "names no NATS servers"),
        ("http://one", "names no NATS servers"),
        ("nats://one:port", "invalid host or port"),
        ("nats://one:70000", "invalid host or port"),
        ("nats://one/a/b", "has a prefix that is not"),
        ("nats://one/a.b", "has a prefix that is not"),
        ("nats://one/a?tls=true", "text after the prefix"),
        ("nats://:secret@one", "a password but no user"),
    ],
)
def test_refused_urls(url: str, sentence: str) -> None:
    """A URL that names nothing usable is refused without its password."""
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        locate(url, {})
    assert "secret" not in str(caught.value)


def test_replicas() -> None:
    """Three servers keep three copies, unless the option says otherwise."""
    assert replicas_of(locate("nats://one", {}), ConnectionOptions()) == 1
    assert replicas_of(locate("nats://one,two,three", {}), ConnectionOptions()) == 3
    assert replicas_of(locate("nats://one", {}), ConnectionOptions(replicas=3)) == 3


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("nats://alice@one", ConnectionOptions(), "set TXN_NATS_PASSWORD"),
        ("nats://alice:secret@one", ConnectionOptions(nkey_file="x"), "name one login"),
        ("nats://one", ConnectionOptions(tls_ca="x"), "set tls to true"),
        ("nats://one", ConnectionOptions(tls_first=True), "set tls to true"),
        ("nats://one", ConnectionOptions(tls=True, tls_key="x"), "name both"),
        ("nats://one", ConnectionOptions(nkey_file="/does/not/exist"), "file not found"),
        ("nats://one", ConnectionOptions(require_tls=True), "on another machine"),
    ],
)
def test_refused_options(url: str, options: ConnectionOptions, sentence: str) -> None:
    """Options that contradict each other or the URL are refused."""
    with pytest.raises(ConfigurationError, match=sentence):
        check(locate(url, {}), options)


def test_password_without_tls(caplog: pytest.LogCaptureFixture) -> None:
    """A password that is sent to another machine without TLS is warned of, without the password."""
    check(locate("nats://alice:secret@one", {}), ConnectionOptions())
    assert "tls is off" in caplog.text
    assert "secret" not in caplog.text
