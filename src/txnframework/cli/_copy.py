"""``txnframework copy`` and ``txnframework audit``: copy a deployment to other stores, and compare two deployments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from txnframework.broker import (
    AuditReport,
    ComparedItem,
    CopyReport,
    CopyRequest,
    audit_stores,
    copy_stores,
    reopen,
)
from txnframework.broker import CopyProgress as Show
from txnframework.cli import terminal
from txnframework.cli._options import ConfigPath, confirm, yes_option
from txnframework.cli._statuses import STATUS_FAILED
from txnframework.cli.output import output_option, print_facts, print_json, print_table
from txnframework.cli.stores import LoadedPlugins, config_option, settings_of
from txnframework.config import Config, redact_url, store_name
from txnframework.errors import InvalidInput

SHOWN_MAX = 20
"""The most differences that the table for people names."""

to_option = click.option(
    "--to",
    "to",
    type=ConfigPath(),
    metavar="FILE",
    help="Configuration file of the other deployment.",
)


@click.command()
@to_option
@click.option("--keep-source", is_flag=True, help="Open the source again after the copy; both deployments then go on.")
@click.option("--reopen", "reopens", is_flag=True, help="Open a source again that a copy has closed.")
@click.option("--dry-run", is_flag=True, help="Show what would be copied, and copy nothing.")
@yes_option
@config_option
@output_option
@click.pass_obj
def copy(
    loaded: LoadedPlugins,
    to: Path | None,
    keep_source: bool,
    reopens: bool,
    dry_run: bool,
    yes: bool,
    config: Path | None,
    output: str,
) -> None:
    """
    Copy metadata and messages to the empty stores of another configuration.

    First stop every process that uses the stores. The copy is compared with the source by counts and hashes, and gets
    an identity of its own. The source cannot be opened afterwards, unless --keep-source is given. If the command is
    interrupted, run it again: neither deployment can be opened until it has finished. --reopen takes --to if the copy
    has the same ledger store.
    """
    source = _lasting(loaded, config)
    if reopens:
        if keep_source or dry_run:
            raise InvalidInput("--reopen takes no other option than --config, --to, --yes and --output")
        _reopen(loaded, source, None if to is None else _lasting(loaded, to), yes, output)
        return
    if to is None:
        raise InvalidInput("--to FILE is missing: it names the configuration file of the stores to copy to")
    if output == "json" and not (dry_run or yes):
        raise InvalidInput("--output json cannot ask for confirmation: add --dry-run or --yes")
    target = _lasting(loaded, to)

    def run(dry: bool) -> tuple[CopyReport, float]:
        began = time.monotonic()
        with progress() as show:
            report = asyncio.run(
                copy_stores(source, target, CopyRequest(keep_source, dry), loaded.registry, progress=show)
            )
        return report, time.monotonic() - began

    if dry_run or not yes:
        planned, _ = run(True)
        if dry_run or not planned.was_complete:
            _show_plan(planned, source, target, output)
        if dry_run:
            return
        if not planned.was_complete:
            confirm("Continue?")
    _show(*run(False), source, target, output)


@click.command()
@to_option
@config_option
@output_option
@click.pass_obj
def audit(loaded: LoadedPlugins, to: Path | None, config: Path | None, output: str) -> None:
    """
    Compare two deployments by counts and hashes.

    Both must be at rest. The exit status is 1 if they differ.
    """
    if to is None:
        raise InvalidInput("--to FILE is missing: it names the configuration file of the deployment to compare with")
    source, target = _lasting(loaded, config), _lasting(loaded, to)
    with progress() as show:
        report = asyncio.run(audit_stores(source, target, loaded.registry, progress=show))
    if output == "json":
        print_json(_audit_document(report))
    else:
        _show_audit(report)
    if report.differing:
        click.get_current_context().exit(STATUS_FAILED)


@contextmanager
def progress() -> Iterator[Show]:
    """Yield a function that shows the progress of each step on a terminal."""
    console = terminal.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done)

        yield show


def _lasting(loaded: LoadedPlugins, config: Path | None) -> Config:
    """
    Return a configuration whose stores other processes can open.

    :raises InvalidInput: a store is lost when this process ends, so a copy into it would close the source for nothing.
    """
    settings, registry = settings_of(loaded, config), loaded.registry
    urls = settings.metadata.url, settings.ledger.url
    for url, provider in zip(urls, (registry.metadata_store, registry.ledger_store), strict=True):
        if not provider(store_name(url)).is_lasting:
            raise InvalidInput(
                f"{redact_url(url)} exists only in this process: name stores that other processes can open"
            )
    return settings


def _reopen(loaded: LoadedPlugins, source: Config, target: Config | None, yes: bool, output: str) -> None:
    if not yes:
        if output == "json":
            raise InvalidInput("--output json cannot ask for confirmation: add --yes")
        confirm("Messages that were sent to the copy are not in the source. Open the source again?")
    copied = asyncio.run(reopen(source, target, loaded.registry))
    if output == "json":
        print_json({"reopened": True, "copy": copied})
        return
    click.echo(f"The source can be opened again. The copy was {copied}.")


def _show_plan(report: CopyReport, source: Config, target: Config, output: str) -> None:
    if output == "json":
        print_json({"dry_run": True, **_document(report)})
        return
    _print_stores(source, target)
    click.echo("To be copied:")
    rows: list[tuple[object, ...]] = [(report.ledgers, "ledgers"), (report.entries, "entries")]
    rows += [(count, f"records {family}/...") for family, count in sorted(report.families.items())]
    print_table(("count", "what"), rows)


def _show(report: CopyReport, seconds: float, source: Config, target: Config, output: str) -> None:
    if output == "json":
        print_json({"dry_run": False, "duration_ms": round(seconds * 1000), **_document(report)})
        return
    _print_stores(source, target)
    if report.was_complete:
        click.echo(f"The copy was complete already: {report.identity}")
        return
    if report.audit is not None:
        _show_audit(report.audit)
    print_facts({"new identity": report.identity, "duration": f"{seconds:.1f} s"})


def _print_stores(source: Config, target: Config) -> None:
    for name, config in (("source", source), ("target", target)):
        urls = redact_url(config.metadata.url), redact_url(config.ledger.url)
        print_facts({f"{name} metadata": urls[0], f"{name} ledger": urls[1]})


def _show_audit(report: AuditReport) -> None:
    rows = [
        (report.ledgers, "ledgers"),
        (report.entries, "entries"),
        (report.messages, "messages"),
        (report.bytes, "bytes of entries"),
        (report.sequences, "sequences of producers"),
        (report.records, "records"),
        (report.index_entries, "entries of indexes"),
    ]
    print_table(("compared", "what"), rows)
    if not report.differing:
        click.echo("No differences.")
        return
    click.echo(f"Differences: {report.differing}")
    titles = ("what", "name", "source", "target")
    print_table(titles, (_difference(line) for line in report.differences[:SHOWN_MAX]))


def _difference(line: ComparedItem) -> tuple[object, ...]:
    sides = line.source, line.target
    same = line.source.count == line.target.count
    shown = (one.error or (f"{one.count}, {one.hash[:8]}" if same else str(one.count)) for one in sides)
    return line.what, line.name, *shown


def _document(report: CopyReport) -> dict[str, Any]:
    document = {name: value for name, value in asdict(report).items() if name != "audit"}
    return document | {"audit": None if report.audit is None else _audit_document(report.audit)}


def _audit_document(report: AuditReport) -> dict[str, Any]:
    return asdict(report)
