from __future__ import annotations

import logging

import click
import pytest

from txnframework.cli._error_report import run_reporting
from txnframework.errors import Unavailable


class DriverError(Exception):
    """An error of another library in a callback."""

    __module__ = "zz_driver.protocol"


def logging_of(name: str, raised: Exception | None = None) -> click.Command:
    def work() -> None:
        logging.getLogger(name).error("said by %s", name, exc_info=raised)

    return click.Command("work", callback=work)


@pytest.mark.parametrize(
    ("name", "raised", "shown"),
    [
        ("zz_driver.client", None, False),
        ("asyncio", DriverError(), False),
        ("asyncio", ZeroDivisionError(), True),
        ("asyncio", Unavailable("away"), True),
        ("asyncio", None, True),
        ("txnframework_metadata.coordinator", None, True),
    ],
)
def test_drivers_do_not_speak_to_people(
    name: str,
    raised: Exception | None,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A driver's logs about an unavailable server are hidden, because our errors report it.

    Defects and our logs are shown.
    """
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # logging is not configured, unlike under pytest
    assert run_reporting(logging_of(name, raised), [], "program", None) == 0
    assert (f"said by {name}" in capsys.readouterr().err) is shown
    monkeypatch.setenv("TXNFRAMEWORK_TRACEBACK", "1")
    run_reporting(logging_of(name, raised), [], "program", None)
    assert f"said by {name}" in capsys.readouterr().err
