"""Names in place of a server's URL start that server; tests of real servers are in their own distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from txnframework.errors import UnknownPlugin
from txnframework.plugin import EmbeddedServer, PluginRegistry, Server, hookimpl, load_plugins
from txnframework.testing.servers.embedded import UnusableServer, started


def offering(name: str, launch: Callable[[], AbstractContextManager[Server]]) -> PluginRegistry:
    """Return a registry of what is installed and a plugin that offers one more server."""

    class Offering:
        @hookimpl
        def txnframework_servers(self) -> list[EmbeddedServer]:
            return [EmbeddedServer(name, launch)]

    return load_plugins((Offering(),))


@contextmanager
def nothing() -> Iterator[Server]:
    yield Server("url://", lambda: None, lambda: None)


def test_other_urls_stay_as_they_are() -> None:
    """A URL of a store, or None, is returned unchanged."""
    with started(load_plugins(), "memory:", None) as urls:
        assert urls == ("memory:", None)


def test_unknown_name() -> None:
    """The error lists the known names."""
    with (
        pytest.raises(UnknownPlugin, match=r"no embedded server named 'nothing' is installed \(installed: .*zz-one"),
        started(offering("zz-one", nothing), "embedded-nothing"),
    ):
        pass


def test_a_known_server_is_not_installed() -> None:
    """The error names the distribution that offers the server."""
    with (
        pytest.raises(UnknownPlugin, match=r"it comes with: pip install txnframework-"),
        started(PluginRegistry({}, {}), "embedded-postgresql"),
    ):
        pass


def test_started_once_and_stopped_whatever_happens() -> None:
    """One name is one server, even if given twice; it stops with the block, also after an error."""
    running: list[str] = []

    @contextmanager
    def one() -> Iterator[Server]:
        running.append("started")
        try:
            yield Server("url://", lambda: None, lambda: None)
        finally:
            running.append("stopped")

    registry = offering("zz-one", one)

    def use() -> None:
        with started(registry, "embedded-zz-one", "other:", "embedded-zz-one") as urls:
            assert urls == ("url://", "other:", "url://")
            assert running == ["started"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert running == ["started", "stopped"]


def test_what_is_missing_is_said() -> None:
    """A server that cannot start is invalid input, with the reason; later failures are not."""

    @contextmanager
    def missing() -> Iterator[Server]:
        raise RuntimeError("pip install it")
        yield Server("", lambda: None, lambda: None)

    with (
        pytest.raises(UnusableServer, match="embedded-zz-missing: pip install it"),
        started(offering("zz-missing", missing), "embedded-zz-missing"),
    ):
        pass
    with pytest.raises(OSError, match="later"), started(offering("zz-there", nothing), "embedded-zz-there"):
        raise OSError("later")


def test_servers_are_listed_with_the_plugins() -> None:
    """Servers are listed as a role of their own."""
    listed = offering("zz-one", nothing).describe()
    assert [one.name for one in listed if one.role == "embedded server" and one.name.startswith("zz")] == ["zz-one"]
