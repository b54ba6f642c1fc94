"""The commands ``txnframework transaction log-batching`` and ``pending-ack-batching``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from txnframework.cli.output import output_option, print_change, print_facts, print_json, print_records
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client
from txnframework.errors import InvalidInput, SubscriptionNotFound
from txnframework.model.names import PERSISTENT, TopicName
from txnframework.plugin import options_as
from txnframework_legacy.administration import LogAdministration, LogStatus
from txnframework_legacy.log import Batching
from txnframework_legacy.log.switches import Decision, LogKind, Scope
from txnframework_legacy.options import CoordinatorOptions, PendingAckOptions

STATUS_FAILED = 1
PLUGIN = "log"
_COORDINATOR = re.compile(r"[89a-f][0-9a-f]{3}")

F = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Wording:
    """The wording for a kind of log."""

    kind: LogKind
    logs: str
    each: str


TRANSACTIONS = Wording(LogKind.TRANSACTIONS, "transaction logs", "coordinators")
PENDING_ACKS = Wording(LogKind.PENDING_ACKS, "logs of pending acknowledgments", "subscriptions")


@click.group(no_args_is_help=True)
def log_batching() -> None:
    """
    Enable or disable batching of records in the transaction logs.

    For the family that serves persistent:// topics. A switch overrides the configuration of every host until 'reset'.
    Running hosts follow within moments.
    """


@click.group(no_args_is_help=True)
def pending_ack_batching() -> None:
    """
    Enable or disable batching of records in the logs of pending acknowledgments.

    For the family that serves persistent:// topics. A switch overrides the configuration of every host until 'reset'.
    Running hosts follow within moments.
    """


def _coordinator_option(command: F) -> F:
    return click.option(
        "--coordinator",
        metavar="ID",
        help="Only this coordinator's log: the first four digits of its transactions' ids.  [default: all]",
    )(command)


def _subscription_options(command: F) -> F:
    command = click.option("--subscription", metavar="NAME", help="Only the log of this subscription of the topic.")(
        command
    )
    return click.option(
        "--topic", metavar="TOPIC", help="Only the logs of this topic's subscriptions.  [default: all]"
    )(command)


def _switching(wording: Wording, options: Callable[[F], F], group: click.Group) -> None:
    """Add the commands of one kind."""

    @group.command()
    @options
    @config_option
    @output_option
    @click.pass_obj
    def enable(loaded: LoadedPlugins, /, config: Path | None, output: str, **where: str | None) -> None:
        """
        Enable batching: records share entries.

        Releases before batching cannot read such entries. Enable batching when every host has been upgraded.
        """
        with_client(loaded, config, lambda client: _switched(client, wording, where, enabled=True))
        facts = _facts_of(wording, where, enabled=True)
        print_change(output, f"Batching enabled for {_what(wording, where)}.", facts)

    @group.command()
    @options
    @config_option
    @output_option
    @click.pass_obj
    def disable(loaded: LoadedPlugins, /, config: Path | None, output: str, **where: str | None) -> None:
        """
        Disable batching: each record has an entry of its own.

        Deletes batched entries that are no longer needed. The others remain until their transactions are forgotten,
        transactions.retention_ms after their end. 'status' shows them; run this command again to delete them.
        """

        async def work(client: Client) -> int:
            await _switched(client, wording, where, enabled=False)
            return await _administration(client, wording.kind).drop_batches(_scope(wording, where))

        left = with_client(loaded, config, work)
        sentence = f"Batching disabled for {_what(wording, where)}."
        if left:
            sentence += f"\n{left} batched {'entry remains' if left == 1 else 'entries remain'}."
        print_change(output, sentence, {**_facts_of(wording, where, enabled=False), "batched_entries": left})

    @group.command()
    @options
    @config_option
    @output_option
    @click.pass_obj
    def reset(loaded: LoadedPlugins, /, config: Path | None, output: str, **where: str | None) -> None:
        """Remove the switch: a wider switch decides, or each host's configuration."""

        async def work(client: Client) -> None:
            await _administration(client, wording.kind).switch(_scope(wording, where), enabled=None)

        with_client(loaded, config, work)
        facts = _facts_of(wording, where, enabled=None)
        print_change(output, f"Switch removed for {_what(wording, where)}.", facts)

    @group.command()
    @options
    @click.option("--fail-if-batched", is_flag=True, help="Exit with status 1 while a batched entry remains.")
    @config_option
    @output_option
    @click.pass_obj
    @click.pass_context
    def status(
        ctx: click.Context,
        loaded: LoadedPlugins,
        /,
        fail_if_batched: bool,
        config: Path | None,
        output: str,
        **where: str | None,
    ) -> None:
        """
        Show whether batching is enabled, and the contents of each log.

        DECIDED BY is the switch that applies to a log, or this configuration. OPEN RECORDS are the records of held
        acknowledgments, and of transactions that are not forgotten yet. The position of the oldest open record is
        ledger:entry:index. COORDINATOR is the first four digits of its transactions' ids, from 8000. Each log is read
        from its beginning. JSON output has more fields.
        """
        found = with_client(loaded, config, lambda client: _status(client, wording, _scope(wording, where)))
        logs: list[dict[str, Any]] = found[wording.each]
        if output == "json":
            print_json(found)
        else:
            print_facts(_facts(found, wording))
            if logs:
                print_records([_row(one) for one in logs])
            else:
                click.echo("No logs: a log is created with its first transaction.")
        if fail_if_batched and any(one["batched_entries"] for one in logs):
            ctx.exit(STATUS_FAILED)


_switching(TRANSACTIONS, _coordinator_option, log_batching)
_switching(PENDING_ACKS, _subscription_options, pending_ack_batching)


def _what(wording: Wording, where: dict[str, str | None]) -> str:
    scope = _scope(wording, where)
    if scope == Scope():
        return f"all {wording.logs}"
    return f"the {wording.logs} of {scope}"


def _facts_of(wording: Wording, where: dict[str, str | None], *, enabled: bool | None) -> dict[str, object]:
    """Return the JSON document of a switch; ``enabled`` is None if it was removed."""
    return {"logs": wording.each, **where, "enabled": enabled}


def _scope(wording: Wording, where: dict[str, str | None]) -> Scope:
    """Return the scope that the options select."""
    if wording.kind is LogKind.TRANSACTIONS:
        coordinator = where["coordinator"]
        if coordinator is not None and not _COORDINATOR.fullmatch(coordinator):
            raise InvalidInput(f"invalid coordinator {coordinator!r}: write four digits, such as 8000")
        return Scope(coordinator or "")
    topic, subscription = where["topic"], where["subscription"]
    if topic is None:
        if subscription is not None:
            raise InvalidInput(f"--subscription {subscription} requires --topic")
        return Scope()
    name = TopicName.parse(topic)
    if name.domain != PERSISTENT:
        raise InvalidInput(f"{name} has no such logs: use a persistent:// topic")
    return Scope(str(name), subscription or "")


async def _switched(client: Client, wording: Wording, where: dict[str, str | None], *, enabled: bool) -> None:
    """
    Switch batching for the scope that the options select.

    :raises TopicNotFound: the topic does not exist.
    :raises SubscriptionNotFound: the topic has no such subscription.
    """
    scope = _scope(wording, where)
    if wording.kind is LogKind.PENDING_ACKS and scope.outer:
        layout = await client.layout(scope.outer)
        if scope.inner and scope.inner not in layout.subscriptions:
            raise SubscriptionNotFound(scope.outer, scope.inner)
    await _administration(client, wording.kind).switch(scope, enabled=enabled)


async def _status(client: Client, wording: Wording, scope: Scope) -> dict[str, Any]:
    """Return the status document."""
    administration, bounds = _administration(client, wording.kind), _configured(client, wording.kind)
    decision = await administration.decision()
    return {
        "enabled": decision.enabled,
        "decided_by": _decider(decision),
        "records_max": bounds.records_max,
        "bytes_max": bounds.bytes_max,
        "delay_ms": bounds.delay_ms,
        wording.each: [_document(wording.kind, one) async for one in administration.logs(scope)],
    }


def _document(kind: LogKind, status: LogStatus) -> dict[str, Any]:
    standing, log = status.standing, status.standing.log
    named = {"coordinator": log.outer}
    if kind is LogKind.PENDING_ACKS:
        named = {"topic": log.outer, "subscription": log.inner}
    return {
        **named,
        "enabled": status.decision.enabled,
        "decided_by": _decider(status.decision),
        "ledgers": standing.ledgers,
        "first_position": _text(standing.first),
        "last_position": _text(standing.last),
        "entries": standing.entries,
        "batched_entries": standing.batched,
        "last_batched_position": _text(standing.last_batched),
        "records": standing.records,
        "open_records": standing.needed,
        "oldest_open_position": _text(standing.oldest_needed),
    }


def _facts(found: dict[str, Any], wording: Wording) -> dict[str, Any]:
    """Return the facts that concern no single log, in readable form."""
    return {
        "batching": f"{'enabled' if found['enabled'] else 'disabled'}, by {found['decided_by']}",
        "entry limits": f"{found['records_max']} records, {found['bytes_max']} bytes, {found['delay_ms']} ms",
        wording.each: len(found[wording.each]),
    }


def _row(log: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a log's line in readable output; JSON output has more."""
    left_out = {"ledgers", "first_position", "last_position", "last_batched_position"}
    return {name.removesuffix("_position"): value for name, value in log.items() if name not in left_out}


def _decider(decision: Decision) -> str:
    return "configuration" if decision.scope is None else f"switch for {decision.scope}"


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)


def _administration(client: Client, kind: LogKind) -> LogAdministration:
    host = client.host
    configured = _configured(client, kind).enabled
    return LogAdministration(kind, host.metadata, host.ledgers, host.environment, configured=configured)


def _configured(client: Client, kind: LogKind) -> Batching:
    """Return the batching options of this process's configuration."""
    registry, config = client.host.registry, client.host.config
    if kind is LogKind.TRANSACTIONS:
        options = registry.decode_options(registry.coordinator(PLUGIN), config.coordinators.get(PLUGIN, {}))
        return options_as(options, CoordinatorOptions).batching
    options = registry.decode_options(registry.pending_ack_store(PLUGIN), config.pending_acks.get(PLUGIN, {}))
    return options_as(options, PendingAckOptions).batching
