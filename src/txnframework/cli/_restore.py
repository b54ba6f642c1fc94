"""``txnframework restore``: repair metadata and ledger after one of them was restored from a backup."""

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
from txnframework.cli._options import confirm, parse_time_ms, yes_option
from txnframework.cli.output import output_option, print_facts, print_json, print_table
from txnframework.cli.stores import NOTICE_DELAY_MS, LoadedPlugins, config_option, settings_of
from txnframework.config import Config, redact_url
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput

ROWS = {
    "transactions_aborted": "open transactions are aborted",
    "branches_aborted": "branches with an unknown outcome are aborted",
    "cursors_moved": "cursors move back to the end of their segment",
    "abort_records_dropped": "abort records beyond the end of their segment are dropped",
    "intents_dropped": "announced writes beyond the end of their segment are dropped",
    "compactions_dropped": "compactions of lost messages are dropped",
    "segments_made": "missing segments are created, empty",
    "coordinators_skipped": "coordinators skip ids that may be in use",
}
NAMED = {
    "segments_unknown": "ledgers of no known topic; their messages are kept and cannot be read",
    "segments_sealed": "segments that accept no messages until they are split",
}


@click.command()
@click.option(
    "--restored",
    type=click.Choice([one.value for one in Restored]),
    required=True,
    help="The store that was restored, and is therefore older than the other one.",
)
@click.option(
    "--taken",
    metavar="TIME",
    help="Time of the backup of the metadata store, such as 2026-01-31T12:00:00Z. An error of up to half of"
    " transactions.retention_ms is allowed.",
)
@click.option("--forced", is_flag=True, help="Pair two stores that did not belong together before.")
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@yes_option
@config_option
@output_option
@click.pass_obj
def restore(
    loaded: LoadedPlugins,
    restored: str,
    taken: str | None,
    forced: bool,
    dry_run: bool,
    yes: bool,
    config: Path | None,
    output: str,
) -> None:
    """
    Repair metadata and ledger after restoring one from a backup.

    First stop every process that uses the stores, and keep a copy of both. Transactions that are open, or whose
    outcome is unknown, are aborted. Both stores get a new identity. The command shows the changes and asks for
    confirmation, unless --yes is given. If it is interrupted, run it again: the stores cannot be opened until it has
    finished.
    """
    if Restored(restored) is Restored.METADATA and taken is None and not forced:
        raise InvalidInput(
            "--restored metadata needs --taken, the time of the backup: see 'txnframework restore --help'"
        )
    if output == "json" and not (dry_run or yes):
        raise InvalidInput("--output json cannot ask for confirmation: add --dry-run or --yes")
    settings = settings_of(loaded, config)
    if settings.metadata.url == settings.ledger.url:
        both = redact_url(settings.metadata.url)
        raise InvalidInput(f"{both} holds both stores: after restoring it as a whole, no repair is needed")
    taken_ms = None if taken is None else parse_time_ms(taken)

    def run(dry: bool) -> RestoreReport:
        request = RestoreRequest(Restored(restored), taken_ms, forced, dry)
        return _run(settings, request, loaded)

    if dry_run or not yes:
        planned = run(True)
        _show(planned, settings, output, dry_run=True)
        if dry_run:
            return
        confirm("Continue?")
    _show(run(False), settings, output, dry_run=False)


def _run(settings: Config, request: RestoreRequest, loaded: LoadedPlugins) -> RestoreReport:
    with progress(terminal.console(stderr=True), SystemEnvironment().now_ms) as show:
        return asyncio.run(restore_stores(settings, request, loaded.registry, progress=show))


@contextmanager
def progress(console: Console, now_ms: Callable[[], int]) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step on a terminal, once the command has run for ``NOTICE_DELAY_MS``."""
    began_ms = now_ms()
    status = console.status("")

    def show(sentence: str) -> None:
        status.update(escape(sentence))
        if console.is_terminal and now_ms() - began_ms >= NOTICE_DELAY_MS:
            status.start()  # repeated calls have no effect

    try:
        yield show
    finally:
        status.stop()


def _show(report: RestoreReport, settings: Config, output: str, *, dry_run: bool) -> None:
    if output == "json":
        print_json(_document(report, dry_run))
        return
    print_facts({"metadata": redact_url(settings.metadata.url), "ledger": redact_url(settings.ledger.url)})
    click.echo("Planned changes:" if dry_run else "Changes:")
    print_table(("count", "change"), _rows(report.counts))
    for field, title in NAMED.items():
        names: list[str] = getattr(report.counts, field)
        if names:
            print_table((title,), ([name] for name in names))
    if not dry_run:
        print_facts({"new identity": report.identity})


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
