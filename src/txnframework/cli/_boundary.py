"""From errors to what a person at a terminal reads: one sentence and an exit status."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from txnframework.errors import InvalidInput, StoreMismatch, TxnFrameworkError

STATUS_DONE = 0
STATUS_FAILED = 1
STATUS_INVALID_INPUT = 2
STATUS_INTERRUPTED = 130

TRACEBACK_VARIABLE = "TXNFRAMEWORK_TRACEBACK"


RESTORE_HINT = "; 'txnframework restore --help' tells how to go on"


def status_of(error: TxnFrameworkError) -> int:
    """Return the exit status for ``error``: 2 if somebody typed something wrong, else 1."""
    return STATUS_INVALID_INPUT if isinstance(error, InvalidInput) else STATUS_FAILED


def report(error: TxnFrameworkError) -> None:
    """Write the error's sentence to standard error."""
    sentence = " ".join(str(error).split()) or type(error).__name__
    hint = RESTORE_HINT if isinstance(error, StoreMismatch) else ""
    click.echo(f"Error: {sentence}{hint}", err=True)


def run_within(command: click.Command, arguments: Sequence[str], program: str, context_object: object) -> int:
    """
    Run ``command`` and return its exit status; no error that is raised on purpose shows a traceback.

    A traceback is shown if the environment variable TXNFRAMEWORK_TRACEBACK is ``1``, and for every exception that
    is not a TxnFrameworkError: that one is a defect, and its traceback is what a report of it needs.
    """
    try:
        result: object = command.main(list(arguments), prog_name=program, standalone_mode=False, obj=context_object)
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return STATUS_INTERRUPTED
    except TxnFrameworkError as exc:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            raise
        report(exc)
        return status_of(exc)
    # click gives back the status of ctx.exit, and otherwise whatever the command returned.
    return result if isinstance(result, int) else STATUS_DONE
