"""The commands ``txnframework transaction log-batching`` and ``pending-ack-batching``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from txnframework.cli.output import output_option, print_facts, print_json, print_records
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
    Let records of the transaction logs share entries.

    It is for the family that serves persistent:// topics. What is switched here holds for every host, whatever its
    configuration says, and until 'reset'; hosts that are running follow within moments.
    """


@click.group(no_args_is_help=True)
def pending_ack_batching() -> None:
    """
    Let records of the logs of pending acknowledgments share entries.

    It is for the family that serves persistent:// topics. What is switched here holds for every host, whatever its
    configuration says, and until 'reset'; hosts that are running follow within moments.
    """


def _coordinator_option(command: F) -> F:
    return click.option(
        "--coordinator",
        metavar="ID",
        help="Only this one's: the first four digits of its transactions' ids; default: all.",
    )(command)


def _subscription_options(command: F) -> F:
    command = click.option("--subscription", metavar="NAME", help="Only that of this subscription of the topic.")(
        command
    )
    return click.option("--topic", metavar="TOPIC", help="Only those of this topic's subscriptions; default: all.")(
        command
    )


def _switching(wording: Wording, options: Callable[[F], F], group: click.Group) -> None:
    """Add the commands of one kind."""

    @group.command()
    @options
    @config_option
    @click.pass_obj
    def enable(loaded: LoadedPlugins, /, config: Path | None, **where: str | None) -> None:
        """
        Share entries from now on.

        Releases before batching cannot read what is written then: enable it when every host has been upgraded.
        """
        with_client(loaded, config, lambda client: _switched(client, wording, where, enabled=True))
        click.echo(f"Records of {_what(wording, where)} share entries.")

    @group.command()
    @options
    @config_option
    @click.pass_obj
    def disable(loaded: LoadedPlugins, /, config: Path | None, **where: str | None) -> None:
        """
        Write each record into an entry of its own from now on.

        Drops what is batched and needed no more. What is left goes as its transactions are forgotten, some time after
        their end (transactions.retention_ms); 'status' shows it, and running this again drops what became free.
        """

        async def work(client: Client) -> int:
            await _switched(client, wording, where, enabled=False)
            return await _administration(client, wording.kind).drop_batches(_scope(wording, where))

        left = with_client(loaded, config, work)
        click.echo(f"Each record of {_what(wording, where)} has an entry of its own.")
        if left:
            click.echo(f"{left} batched {'entry is' if left == 1 else 'entries are'} left.")

    @group.command()
    @options
    @config_option
    @click.pass_obj
    def reset(loaded: LoadedPlugins, /, config: Path | None, **where: str | None) -> None:
        """Forget what was switched, so that a wider switch holds again, or each host's configuration."""

        async def work(client: Client) -> None:
            await _administration(client, wording.kind).switch(_scope(wording, where), enabled=None)

        with_client(loaded, config, work)
        click.echo(f"Nothing is switched for {_what(wording, where)}.")

    @group.command()
    @options
    @click.option("--fail-if-batched", is_flag=True, help="Exit status 1 while a batched entry is left.")
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
        Show whether records share entries, and what is in each log.

        DECIDED BY says what holds for a log: a switch, or this configuration. OPEN RECORDS are those that begin what
        is not done yet, the oldest at ledger:entry:index. COORDINATOR is the number with which the ids of its
        transactions begin, four digits that count up from 8000 in this family. Each log is read from its beginning;
        JSON says more of it.
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
                click.echo("There is no log yet: one is made with the first transaction.")
        if fail_if_batched and any(one["batched_entries"] for one in logs):
            ctx.exit(STATUS_FAILED)


_switching(TRANSACTIONS, _coordinator_option, log_batching)
_switching(PENDING_ACKS, _subscription_options, pending_ack_batching)


def _what(wording: Wording, where: dict[str, str | None]) -> str:
    scope = _scope(wording, where)
    if scope == Scope():
        return f"all {wording.logs}"
    return f"the {wording.logs} of {scope}"


def _scope(wording: Wording, where: dict[str, str | None]) -> Scope:
    """Return the scope that the options select."""
    if wording.kind is LogKind.TRANSACTIONS:
        coordinator = where["coordinator"]
        if coordinator is not None and not _COORDINATOR.fullmatch(coordinator):
            raise InvalidInput(f"{coordinator!r} is no coordinator of this family: write 8000, as 'status' names it")
        return Scope(coordinator or "")
    topic, subscription = where["topic"], where["subscription"]
    if topic is None:
        if subscription is not None:
            raise InvalidInput(f"--subscription {subscription} needs the --topic that it belongs to")
        return Scope()
    name = TopicName.parse(topic)
    if name.domain != PERSISTENT:
        raise InvalidInput(f"{name} has no such logs: name a persistent:// topic")
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
        "records share entries": f"{'yes' if found['enabled'] else 'no'}, by {found['decided_by']}",
        "an entry at most": f"{found['records_max']} records, {found['bytes_max']} bytes, after {found['delay_ms']} ms",
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
