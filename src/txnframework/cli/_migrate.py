"""``txnframework topic migrate``: migrate a topic to the metadata-driven family while it is used."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from txnframework.broker import MigrationFacts
from txnframework.cli._copy import progress
from txnframework.cli._options import confirm, yes_option
from txnframework.cli.output import output_option, print_facts, print_json, time_of
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client
from txnframework.errors import InvalidInput, MigrationRefused
from txnframework.model import TopicName
from txnframework.model.names import TOPIC
from txnframework.model.topic_migration import MigrationStep

WAIT_S = 10


@click.command()
@click.argument("topic")
@click.argument("to", required=False)
@click.option("--dry-run", is_flag=True, help="Show what the migration would find, and change nothing.")
@click.option("--rollback", is_flag=True, help="Roll back a migration that is planned and not decided.")
@click.option(
    "--wait-s",
    type=click.IntRange(min=0),
    default=WAIT_S,
    show_default=True,
    help="How long to wait for open transactions, in seconds; those that are open then are aborted.",
)
@yes_option
@config_option
@output_option
@click.pass_obj
def migrate(
    loaded: LoadedPlugins,
    topic: str,
    to: str | None,
    dry_run: bool,
    rollback: bool,
    wait_s: int,
    yes: bool,
    config: Path | None,
    output: str,
) -> None:
    """
    Migrate TOPIC, a persistent:// topic, to TO, a topic:// topic, while it is used.

    Default of TO: the same name. Producers, consumers and readers follow. Subscriptions keep their acknowledgments.
    Transactions that are open on TOPIC at the end are aborted. If the command is interrupted, run it again, or roll
    it back with --rollback. Once it is decided, any process that uses the topic finishes it, and there is no way back.
    """
    old = TopicName.parse(topic)
    new = replace(old, domain=TOPIC) if to is None else TopicName.parse(to)
    if rollback:
        if dry_run or to is not None:
            raise InvalidInput("--rollback takes only TOPIC, --config and --output")
        withdrawn = with_client(loaded, config, lambda client: client.topics.migrations.withdraw(old))
        _print_end(old, "migration rolled back" if withdrawn else "no migration is planned", None, output)
        return
    if output == "json" and not (dry_run or yes):
        raise InvalidInput("--output json cannot ask for confirmation: add --dry-run or --yes")
    if dry_run or not yes:
        facts = with_client(loaded, config, lambda client: client.topics.migrations.describe(old, new))
        _print_facts(facts, output)
        if dry_run:
            return
        if facts.refused:
            raise MigrationRefused(str(old), facts.refused)
        confirm("Continue?")

    async def work(client: Client) -> None:
        with progress() as show:
            await client.topics.migrations.migrate(old, new, wait_s * 1_000, show)

    began = time.monotonic()
    with_client(loaded, config, work, stays=True)
    _print_end(old, f"migrated to {new}", time.monotonic() - began, output)


def _print_facts(facts: MigrationFacts, output: str) -> None:
    is_source = facts.step in (None, MigrationStep.PLANNED)  # otherwise the new topic has the messages
    document = {
        "topic": facts.topic,
        "to": facts.to,
        "step": "none" if facts.step is None else facts.step.value,
        "planned": time_of(facts.planned_ms),
        "messages": facts.messages if is_source else None,
        "subscriptions": list(facts.subscriptions) if is_source else None,
        "open_transactions": facts.open_transactions if is_source else None,
        "refused": facts.refused,
    }
    if output == "json":
        print_json(document)
        return
    shown = {name.replace("_", " "): value for name, value in document.items() if value not in (None, "")}
    if is_source:
        shown["subscriptions"] = ", ".join(facts.subscriptions) or "none"
    print_facts(shown)


def _print_end(topic: TopicName, result: str, seconds: float | None, output: str) -> None:
    if output == "json":
        print_json(
            {"topic": str(topic), "result": result, "duration_ms": None if seconds is None else round(seconds * 1000)}
        )
    elif seconds is None:
        click.echo(f"{topic}: {result}.")
    else:
        click.echo(f"{topic}: {result} ({seconds:.1f} s).")
