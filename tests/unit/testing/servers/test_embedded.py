"""Names that stand for a server to start; the real servers are tested where they are installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from txnframework.testing.servers import embedded
from txnframework.testing.servers.embedded import Server, UnusableServer, started


def test_other_urls_stay_as_they_are() -> None:
    """What is no such name is none of our business, and neither is what was not given."""
    with started("memory:", None) as urls:
        assert urls == ("memory:", None)


def test_unknown_name() -> None:
    """It is refused with the names that there are."""
    with (
        pytest.raises(UnusableServer, match=r"embedded-nothing: .*there are .*embedded-postgresql"),
        started("embedded-nothing"),
    ):
        pass


def test_started_once_and_stopped_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is given twice is one server, which ends with the block, also when that raises."""
    running: list[str] = []

    @contextmanager
    def one() -> Iterator[Server]:
        running.append("started")
        try:
            yield Server("url://", lambda: None, lambda: None)
        finally:
            running.append("stopped")

    monkeypatch.setattr(embedded, "EMBEDDED", {"embedded-one": one})

    def use() -> None:
        with started("embedded-one", "other:", "embedded-one") as urls:
            assert urls == ("url://", "other:", "url://")
            assert running == ["started"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert running == ["started", "stopped"]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot be started is bad input, with the reason; what fails later is not."""

    @contextmanager
    def missing() -> Iterator[Server]:
        raise RuntimeError("pip install it")
        yield Server("", lambda: None, lambda: None)

    @contextmanager
    def there() -> Iterator[str]:
        yield Server("", lambda: None, lambda: None)

    monkeypatch.setattr(embedded, "EMBEDDED", {"embedded-missing": missing, "embedded-there": there})
    with pytest.raises(UnusableServer, match="embedded-missing: pip install it"), started("embedded-missing"):
        pass
    with pytest.raises(OSError, match="later"), started("embedded-there"):
        raise OSError("later")
