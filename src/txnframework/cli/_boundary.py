"""From errors to what a person at a terminal reads: one sentence and an exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import click

from txnframework.cli._logs import own_words_only
from txnframework.cli.terminal import safe_output
from txnframework.errors import InvalidInput, StoreMismatch, SubscriptionNotFound, TopicNotFound, TxnFrameworkError

STATUS_DONE = 0
STATUS_FAILED = 1
STATUS_INVALID_INPUT = 2
STATUS_INTERRUPTED = 130

TRACEBACK_VARIABLE = "TXNFRAMEWORK_TRACEBACK"

HINTS: dict[type[TxnFrameworkError], str] = {
    StoreMismatch: "; 'txnframework restore --help' tells how to go on",
    TopicNotFound: "; 'txnframework topic list' shows those that there are",
    SubscriptionNotFound: "; 'txnframework subscription list' shows those that there are",
}
"""Which command helps on; what the errors say by themselves is for programs too."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a file or terminal says that takes no more of what is printed; stores have errors of their own."""


def status_of(error: TxnFrameworkError) -> int:
    """Return the exit status for ``error``: 2 if somebody typed something wrong, else 1."""
    return STATUS_INVALID_INPUT if isinstance(error, InvalidInput) else STATUS_FAILED


def report(error: TxnFrameworkError) -> None:
    """Write the error's sentence to standard error."""
    sentence = " ".join(str(error).split()) or type(error).__name__
    hints = [hint for kind, hint in HINTS.items() if isinstance(error, kind)]
    click.echo("".join(["Error: ", sentence, *hints]), err=True)


def run_within(command: click.Command, arguments: Sequence[str], program: str, context_object: object) -> int:
    """
    Run ``command`` and return its exit status; no error that is raised on purpose shows a traceback.

    A traceback, and what drivers log, is shown if the environment variable TXNFRAMEWORK_TRACEBACK is ``1``. A
    traceback is shown for every exception that is not a TxnFrameworkError, too: that one is a defect, and its traceback
    is what a report of it needs.
    """
    with safe_output():
        return _run(command, arguments, program, context_object)


def _run(command: click.Command, arguments: Sequence[str], program: str, context_object: object) -> int:
    shows_all = os.environ.get(TRACEBACK_VARIABLE) == "1"
    try:
        with nullcontext() if shows_all else own_words_only():
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
        if exc.errno not in UNWRITABLE:
            raise
        click.echo(f"Error: what this command prints cannot be written: {exc.strerror}", err=True)
        _give_up_output()
        return STATUS_FAILED
    # click gives back the status of ctx.exit, and otherwise whatever the command returned.
    return result if isinstance(result, int) else STATUS_DONE


def _give_up_output() -> None:
    """Let what is left of standard output go nowhere, so that Python does not try to write it once more."""
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:  # what has no file descriptor is not written again
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
