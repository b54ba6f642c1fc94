"""``txnframework restore``: go on after one of the two stores came from a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from txnframework.broker import Counts, Restored, RestoreReport, RestoreRequest
from txnframework.broker import restore as restore_stores
from txnframework.cli import terminal
from txnframework.cli._asking import ask, yes_option
from txnframework.cli._config_option import config_option
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import settings_of
from txnframework.cli._typed import time_ms_of
from txnframework.cli.output import output_option, print_facts, print_json, print_table
from txnframework.config import Config, redact_url
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput

QUIET_MS = 2_000
"""For so long nobody wonders what a command is doing."""

ROWS = {
    "transactions_aborted": "open transactions are aborted",
    "branches_aborted": "branches that nobody can decide any more are aborted",
    "cursors_moved": "cursors move back to the end of their segment",
    "abort_records_dropped": "abort records beyond the end of their segment are dropped",
    "intents_dropped": "writes announced beyond the end of their segment are dropped",
    "segments_made": "segments that are missing are made anew, empty",
    "coordinators_skipped": "coordinators go on with ids far beyond those that were used",
}
NAMED = {
    "segments_unknown": "ledgers that no topic knows; their messages are kept, and cannot be reached",
    "segments_sealed": "segments that take no messages until they are split again",
}


@click.command()
@click.option(
    "--restored",
    type=click.Choice([one.value for one in Restored]),
    required=True,
    help="Which of the two stores was put back, and is older than the other one now.",
)
@click.option(
    "--taken",
    metavar="TIME",
    help="When the backup of the metadata store was taken, such as 2026-01-31T12:00:00Z; may be wrong by half of"
    " transactions.retention_ms.",
)
@click.option("--forced", is_flag=True, help="The two never belonged together, and are to from now on.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@yes_option
@config_option
@output_option
@click.pass_obj
def restore(
    loaded: Loaded,
    restored: str,
    taken: str | None,
    forced: bool,
    dry_run: bool,
    yes: bool,
    config: Path | None,
    output: str,
) -> None:
    """
    Make a pair again of two stores of which one was restored from a backup.

    Stop every process that has them open before, and keep a copy of both. What is open, or cannot be decided any more,
    is aborted; both stores take a new identity. Shows what it would do and asks, unless it is told --yes. Repeat it if
    it is interrupted: until it is finished, opening the stores is refused.
    """
    if Restored(restored) is Restored.METADATA and taken is None and not forced:
        raise InvalidInput("say when the backup of the metadata store was taken, with --taken: see 'restore --help'")
    if output == "json" and not (dry_run or yes):
        raise InvalidInput("with --output json nothing is asked: add --dry-run or --yes")
    settings = settings_of(loaded, config)
    if settings.metadata.url == settings.ledger.url:
        both = redact_url(settings.metadata.url)
        raise InvalidInput(f"{both} holds both stores: put back as a whole, it is a pair, and can be opened as it is")
    taken_ms = None if taken is None else time_ms_of(taken)

    def run(without_a_change: bool) -> RestoreReport:
        request = RestoreRequest(Restored(restored), taken_ms, forced, without_a_change)
        return _run(settings, request, loaded)

    if dry_run or not yes:
        planned = run(True)
        _show(planned, settings, output, dry_run=True)
        if dry_run:
            return
        ask("Go on?")
    _show(run(False), settings, output, dry_run=False)


def _run(settings: Config, request: RestoreRequest, loaded: Loaded) -> RestoreReport:
    with progress(terminal.console(stderr=True), SystemEnvironment().now_ms) as tell:
        return asyncio.run(restore_stores(settings, request, loaded.registry, progress=tell))


@contextmanager
def progress(console: Console, now_ms: Callable[[], int]) -> Iterator[Callable[[str], None]]:
    """Give a function that is told what is being done, and shows it to whoever has waited for longer than a moment."""
    began_ms = now_ms()
    status = console.status("")

    def tell(sentence: str) -> None:
        status.update(escape(sentence))
        if console.is_terminal and now_ms() - began_ms >= QUIET_MS:
            status.start()  # once more changes nothing

    try:
        yield tell
    finally:
        status.stop()


def _show(report: RestoreReport, settings: Config, output: str, *, dry_run: bool) -> None:
    if output == "json":
        print_json(_document(report, dry_run))
        return
    print_facts({"metadata": redact_url(settings.metadata.url), "ledger": redact_url(settings.ledger.url)})
    click.echo("This would be done:" if dry_run else "This was done:")
    print_table(("how many", "what"), _rows(report.counts))
    for field, title in NAMED.items():
        names: list[str] = getattr(report.counts, field)
        if names:
            print_table((title,), ([name] for name in names))
    if not dry_run:
        print_facts({"both stores are now": report.identity})


def _rows(counts: Counts) -> list[tuple[object, ...]]:
    return [(getattr(counts, field), what) for field, what in ROWS.items()]


def _document(report: RestoreReport, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "metadata_identity": report.metadata_identity,
        "ledger_identity": report.ledger_identity,
        "identity": None if dry_run else report.identity,
        **asdict(report.counts),
    }
