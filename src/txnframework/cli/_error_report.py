"""Error reports and exit statuses: every deliberate error becomes one sentence on standard error."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import click

from txnframework.cli._safe_stream import safe_output
from txnframework.cli._statuses import STATUS_DONE, STATUS_FAILED, STATUS_INTERRUPTED, STATUS_INVALID_INPUT
from txnframework.errors import (
    DeploymentClosed,
    InvalidInput,
    StoreMismatch,
    SubscriptionNotFound,
    TopicNotFound,
    TxnFrameworkError,
)

TRACEBACK_VARIABLE = "TXNFRAMEWORK_TRACEBACK"

HINTS: dict[type[TxnFrameworkError], str] = {
    DeploymentClosed: "; see 'txnframework copy --help'",
    StoreMismatch: "; see 'txnframework restore --help'",
    TopicNotFound: "; 'txnframework topic list' lists all topics",
    SubscriptionNotFound: "; 'txnframework subscription list' lists the subscriptions of a topic",
}
"""The command that helps with an error; programs see the errors without it."""

OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a file or terminal that accepts no more output; stores have errors of their own."""

OWN_PREFIX = "txnframework"
"""The names of this project's loggers and modules, also those of its plugins, start with this."""


def run_reporting(command: click.Command, arguments: Sequence[str], program: str, context_object: object) -> int:
    """
    Run ``command`` and return its exit status; a TxnFrameworkError is reported without a traceback.

    Any other exception is a defect, and its traceback is shown. If the environment variable TXNFRAMEWORK_TRACEBACK is
    ``1``, all tracebacks and the log lines of drivers are shown.
    """
    with safe_output():
        return _run(command, arguments, program, context_object)


def _run(command: click.Command, arguments: Sequence[str], program: str, context_object: object) -> int:
    shows_all = os.environ.get(TRACEBACK_VARIABLE) == "1"
    try:
        with nullcontext() if shows_all else driver_logs_hidden():
            result: object = command.main(list(arguments), prog_name=program, standalone_mode=False, obj=context_object)
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return STATUS_INTERRUPTED
    except TxnFrameworkError as exc:
        if shows_all:
            raise
        report(exc)
        return status_of(exc)
    except OSError as exc:
        if exc.errno not in OUTPUT_ERRORS:
            raise
        click.echo(f"Error: cannot write the output: {exc.strerror}", err=True)
        _discard_output()
        return STATUS_FAILED
    # click returns the status of ctx.exit, or else the return value of the command.
    return result if isinstance(result, int) else STATUS_DONE


def status_of(error: TxnFrameworkError) -> int:
    """Return the exit status for ``error``: 2 for invalid usage, else 1."""
    return STATUS_INVALID_INPUT if isinstance(error, InvalidInput) else STATUS_FAILED


def report(error: TxnFrameworkError) -> None:
    """
    Write the error's sentence and notes to standard error, with the command that explains its code.

    Invalid usage has no such command, because its sentence says what to do.
    """
    sentence = " ".join(str(error).split()) or type(error).__name__
    notes = [" ".join(note.split()) for note in getattr(error, "__notes__", ())]
    hint = "".join(f"; {note}" for note in notes) or next(
        (hint for kind, hint in HINTS.items() if isinstance(error, kind)), ""
    )
    explained = "" if isinstance(error, InvalidInput) else f" (txnframework explain {error.code})"
    click.echo(f"Error: {sentence}{hint}{explained}", err=True)


def _discard_output() -> None:
    """Redirect standard output to the null device, so that Python does not write its buffer again at exit."""
    with suppress(OSError), Path(os.devnull).open("wb") as null:  # a stream without a descriptor is not written again
        os.dup2(null.fileno(), sys.stdout.fileno())


@contextmanager
def driver_logs_hidden() -> Iterator[None]:
    """
    Hide log lines of drivers if the program has not configured logging, because errors report the failure.

    A driver that loses its server may also raise in a callback of its own, and asyncio logs that traceback. Tracebacks
    of this project's exceptions and of Python's own are defects, and are shown.
    """
    last = logging.lastResort
    if last is None:
        yield
        return
    last.addFilter(_is_own)
    try:
        yield
    finally:
        last.removeFilter(_is_own)


def _is_own(record: logging.LogRecord) -> bool:
    if record.name == "asyncio":
        raised = record.exc_info[0] if record.exc_info else None
        return (
            raised is None
            or raised.__module__.partition(".")[0] in sys.stdlib_module_names
            or raised.__module__.startswith(OWN_PREFIX)
        )
    return record.name == "py.warnings" or record.name.startswith(OWN_PREFIX)
