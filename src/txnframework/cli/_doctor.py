"""``txnframework doctor``: what is wrong with an installation and its stores, and what to do."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path

import click
import msgspec

from txnframework.broker import StoreProbe, probe_stores
from txnframework.cli._explain import entry_of
from txnframework.cli._groups import LoadedPlugins
from txnframework.cli._options import CONFIG_FILE, config_option
from txnframework.cli._statuses import STATUS_FAILED
from txnframework.cli._transaction import explain
from txnframework.cli.output import duration_of, output_option, print_json, print_records
from txnframework.cli.stores import connection_notice, notice_if_slow, settings_of
from txnframework.client import Client, open
from txnframework.config import Config
from txnframework.environment import SystemEnvironment
from txnframework.errors import Corrupt, TxnFrameworkError
from txnframework.interfaces import IDiagnosable, IManagedLedger
from txnframework.model.entry_view import EntryView
from txnframework.model.positions import EntryRange, Limit
from txnframework.model.transactions import OpenQuery

HANGING_AGE_MS = 60_000
SHOWN_MAX = 10
"""The most transactions of one kind that are listed one by one."""
LEASES_MAX = LISTED_MAX = 1_000
FUTURE_MS_MAX = 1 << 45
"""Transactions are listed also if their ages are negative, down to this one."""
LEDGERS_MAX = 100
"""The most ledgers whose last entries are compared with this host's clock."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; ``remedy`` is empty if nothing is wrong."""

    check: str
    found: str
    remedy: str = ""


@click.command()
@config_option
@output_option
@click.pass_obj
@click.pass_context
def doctor(ctx: click.Context, loaded: LoadedPlugins, config: Path | None, output: str) -> None:
    """
    Find out what is wrong, and what to do.

    Checks the versions of the installed distributions, the configuration, whether the stores answer and belong
    together, clocks, hanging transactions, and the leases of the processes that work on the stores. Changes nothing,
    but creates an empty store as any first use does. Exit status 1 if a remedy is needed.
    """
    findings = list(versions())
    findings += [Finding("plugins", _sentence(one), entry_of(type(one)).advice) for one in loaded.errors]
    settings = None
    try:
        settings = settings_of(loaded, config)
        source = config or (CONFIG_FILE if Path(CONFIG_FILE).exists() else "no file, so the defaults")
        findings.append(Finding("configuration", f"{source}: valid"))
    except TxnFrameworkError as error:
        remedy = "correct the file; 'txnframework init' writes one that lists all settings"
        findings.append(Finding("configuration", _sentence(error), remedy))
    if settings is not None:
        findings += asyncio.run(_of_stores(loaded, settings))
    if output == "json":
        print_json([asdict(one) for one in findings])
    else:
        print_records([{"check": one.check, "found": one.found, "to do": one.remedy or None} for one in findings])
    if any(one.remedy for one in findings):
        ctx.exit(STATUS_FAILED)


def versions() -> Iterator[Finding]:
    """Yield the versions of Python and of this project's distributions, which are released together."""
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    found = {one.name: one.version for one in distributions() if one.name.startswith("txnframework")}
    usual = Counter(found.values()).most_common(1)
    for name, version in sorted(found.items()):
        other = f"install one version of all distributions; most are {usual[0][0]}"
        yield Finding("version", f"{name} {version}", other if version != usual[0][0] else "")


async def _of_stores(loaded: LoadedPlugins, settings: Config) -> list[Finding]:
    environment = SystemEnvironment()
    async with notice_if_slow(connection_notice(settings, loaded.registry), environment):
        probes = await probe_stores(settings, loaded.registry, environment)
    findings = [finding_of(one) for one in probes]
    if any(one.took_ms is None for one in probes):
        return findings
    quiet = msgspec.structs.replace(settings, transactions=msgspec.structs.replace(settings.transactions, sweep=False))
    try:
        async with open(quiet, registry=loaded.registry) as client:
            findings += await _of_metadata_store(client)
            findings.append(await _clocks(client))
            findings += await _hanging(client)
            findings += await _leases(client)
    except TxnFrameworkError as error:
        findings.append(Finding("stores", _sentence(error), entry_of(type(error)).advice))
    return findings


def finding_of(probe: StoreProbe) -> Finding:
    """Return what the probe of a store found."""
    name = "stores belong together" if probe.store == "pair" else probe.store
    if probe.error is not None:
        return Finding(name, _sentence(probe.error), entry_of(type(probe.error)).advice)
    if probe.took_ms is None:
        return Finding(name, f"{probe.url}: not checked", "repair the store above first")
    return Finding(name, f"{probe.url}: " + ("yes" if probe.store == "pair" else f"answers, in {probe.took_ms:.0f} ms"))


async def _of_metadata_store(client: Client) -> list[Finding]:
    """Return what makes the metadata store slow, though it answers."""
    store = client.host.metadata
    if not IDiagnosable.providedBy(store):
        return []
    return [Finding("metadata", one.found, one.remedy) for one in await store.diagnose(HANGING_AGE_MS)]


async def _clocks(client: Client) -> Finding:
    """
    Return what is dated in the future by this host's clock: transactions by their hosts, messages by their senders.

    A clock that is behind this one cannot be told from an old transaction or message.
    """
    host = client.host
    limit_ms = host.config.transactions.max_clock_skew_ms
    ahead_ms = {"": 0}
    for coordinator in await host.coordinators():
        for one in await coordinator.list_open(OpenQuery(-FUTURE_MS_MAX, limit=Limit(LISTED_MAX))):
            name = f"the host of {one.process or 'the client of transaction ' + str(one.txn_id)}"
            ahead_ms[name] = one.created_ms - host.environment.now_ms()
    for name in await host.ledgers.list_names("", "", LEDGERS_MAX):
        ledger = await host.ledgers.open(name)
        try:
            appended = [one.appended_ms for one in await ledger.ledgers(-1, LEDGERS_MAX) if one.entries]
            now_ms = host.environment.now_ms()
            if max(appended, default=0) > now_ms + limit_ms:
                dated, by_ms = await _dated(ledger, now_ms + limit_ms + 1)
                ahead_ms[dated] = by_ms - now_ms
        finally:
            await ledger.close()
    furthest = max(ahead_ms, key=lambda one: ahead_ms[one])
    if ahead_ms[furthest] <= limit_ms:
        return Finding("clocks", "nothing is dated in the future by this host's clock")
    return Finding(
        "clocks",
        f"the clock of {furthest} is at least {duration_of(ahead_ms[furthest])} ahead of this host's",
        f"synchronise the clocks; transactions.max_clock_skew_ms is {limit_ms}",
    )


async def _dated(ledger: IManagedLedger, since_ms: int) -> tuple[str, int]:
    """
    Return whose clock dated the first entry of a ledger that is dated ``since_ms`` or later, and that time.

    An entry gets the later of two times: that of the one before it, and that of the clock. So the first one shows whose
    clock it was, and later ones only repeat its time. Its sender has dated the messages too.
    """
    after = await ledger.find_time(since_ms)
    (entry,) = await ledger.read(EntryRange(after, (await ledger.tail()).last_confirmed), Limit(1))
    appended_ms = (await ledger.count(EntryRange(after, entry.position), 1)).appended_ms or since_ms
    where = f"{entry.position} of {ledger.name}"
    try:
        view = EntryView(entry.data, entry.position, ledger.name)
        sent_ms = next(iter(view.messages())).published_ms
    except Corrupt:
        return f"the host that appended {where}", appended_ms  # a marker, or an entry of a log
    if sent_ms >= since_ms:
        return f"the host of producer {view.producer}, which sent {where},", sent_ms
    return f"the ledger store's server, or of the host that appended {where},", appended_ms


async def _hanging(client: Client) -> list[Finding]:
    """Return what hangs, at most ``SHOWN_MAX`` transactions one by one."""
    found = await client.find_hanging(HANGING_AGE_MS, transactions_max=SHOWN_MAX)
    now_ms, skew_ms = client.host.environment.now_ms(), client.host.config.transactions.max_clock_skew_ms
    counted = [f"{one.open_count} open in the family {one.family}" for one in await client.count_transactions()]
    findings = [Finding("transactions", ", ".join(counted) or "no family is configured")]
    for one in found:
        reason, remedy = explain(one, now_ms, skew_ms)
        findings.append(
            Finding("hanging", f"{one.transaction.txn_id}, for {duration_of(one.age_ms)}: {reason}", remedy)
        )
    if len(found) == SHOWN_MAX:
        findings.append(Finding("hanging", "there may be more", "run 'txnframework transaction find-hanging'"))
    if not found:
        findings.append(Finding("hanging", f"no transaction has been hanging for {duration_of(HANGING_AGE_MS)}"))
    return findings


async def _leases(client: Client) -> list[Finding]:
    """Return which processes work on the stores, as the leases show."""
    sweepers = await client.leases("sweep ", leases_max=LEASES_MAX)
    findings = [Finding(one.name, one.holder) for one in sweepers]
    if not sweepers:
        needed = [one.family for one in await client.count_transactions() if one.open_count or one.operations_left]
        findings.append(
            Finding(
                "sweep",
                "no process sweeps",
                "keep a client open whose transactions.sweep is on, or run 'txnframework maintain'" if needed else "",
            )
        )
    for kind, what in (("session ", "processes with transactions"), ("dispatch ", "segments with consumers")):
        held = await client.leases(kind, leases_max=LEASES_MAX)
        number = f"{len(held)}" if len(held) < LEASES_MAX else f"at least {LEASES_MAX}"
        findings.append(Finding(what, number))
    return findings


def _sentence(error: TxnFrameworkError) -> str:
    return " ".join(str(error).split()) or type(error).__name__
