"""``txnframework subscription``: manage subscriptions and their positions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from txnframework.broker import Start
from txnframework.cli._consume import print_message
from txnframework.cli._options import confirm, parse_time_ms, require_answer, yes_option
from txnframework.cli.output import output_option, position_of, print_change, print_facts, print_json, print_records
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client, MessageID, SegmentLag
from txnframework.errors import InvalidInput, SubscriptionNotFound
from txnframework.model.layout import Layout, Segment
from txnframework.model.names import parse_name


@click.group(no_args_is_help=True)
def subscription() -> None:
    """Manage the subscriptions of a topic."""


@subscription.command("list")
@click.argument("topic")
@config_option
@output_option
@click.pass_obj
def list_subscriptions(loaded: LoadedPlugins, topic: str, config: Path | None, output: str) -> None:
    """List the subscriptions of TOPIC."""
    layout = with_client(loaded, config, lambda client: client.layout(topic))
    if output == "json":
        print_json(list(layout.subscriptions))
        return
    for name in layout.subscriptions:
        click.echo(name)
    if not layout.subscriptions:
        click.echo(f"{layout.topic} has no subscriptions. 'txnframework subscription create' creates one.")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="Start at the first stored message, or after the last readable one.",
)
@config_option
@output_option
@click.pass_obj
def create(loaded: LoadedPlugins, topic: str, name: str, start: Start, config: Path | None, output: str) -> None:
    """
    Create subscription NAME of TOPIC.

    An existing subscription is not changed.
    """
    with_client(loaded, config, lambda client: client.subscribe(topic, name, start=start))
    print_change(
        output, f"Subscription {name} of {topic} exists.", {"topic": str(parse_name(topic)), "subscription": name}
    )


@subscription.command()
@click.argument("topic")
@click.argument("name")
@yes_option
@config_option
@output_option
@click.pass_obj
def delete(loaded: LoadedPlugins, topic: str, name: str, yes: bool, config: Path | None, output: str) -> None:
    """
    Delete subscription NAME of TOPIC.

    Its position and its acknowledgments are deleted.
    """
    require_answer(output, yes)
    if not yes:
        confirm("This deletes its position and its acknowledgments. Continue?")
    with_client(loaded, config, lambda client: client.unsubscribe(topic, name))
    print_change(
        output,
        f"Deleted subscription {name} of {topic}.",
        {"topic": str(parse_name(topic)), "subscription": name, "deleted": True},
    )


@subscription.command()
@click.argument("topic")
@click.argument("name")
@config_option
@output_option
@click.pass_obj
def describe(loaded: LoadedPlugins, topic: str, name: str, config: Path | None, output: str) -> None:
    """
    Show the position of subscription NAME of TOPIC on every segment.

    DISPATCHED BY is the process that delivers the messages, 'on CLIENT@HOST:PID in SESSION', after the name of a
    consumer that has one.
    LAG is the number of readable messages that are not acknowledged ("at most" where aborted messages may be counted).
    UNDECIDED is the number of messages that may not be read yet: the open transaction in WAITS FOR wrote the first.
    MARK DELETE is the position up to which all messages are acknowledged. ACKNOWLEDGED shows the acknowledgments after
    it: ranges of entries, and indexes within batches. OPEN TRANSACTIONS have acknowledged messages here. MARK DELETE
    stays before the first message that is neither acknowledged nor skipped because its transaction was aborted.
    Delivery stops when ACKNOWLEDGED has subscriptions.deleted_ranges_max ranges.
    """

    async def work(client: Client) -> tuple[Layout, list[dict[str, Any]]]:
        layout = await client.layout(topic)
        if name not in layout.subscriptions:
            raise SubscriptionNotFound(str(layout.topic), name)
        lag = {one.segment: one for one in (await client.lag(topic, name)).segments}
        holders = await client.dispatchers(topic, name)
        return layout, [await _described(client, layout, segment, name, lag, holders) for segment in layout.in_order()]

    layout, segments = with_client(loaded, config, work)
    if output == "json":
        print_json({"topic": str(layout.topic), "subscription": name, "segments": segments})
        return
    print_facts({"topic": layout.topic, "subscription": name})
    print_records([_row(one) for one in segments])


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.argument("to")
@config_option
@output_option
@click.pass_obj
def seek(loaded: LoadedPlugins, topic: str, name: str, to: str, config: Path | None, output: str) -> None:
    """
    Move subscription NAME of TOPIC to another position.

    TO is 'earliest', 'latest', the id of the message to deliver next (as 'topic consume --output json' prints it), or a
    time such as 2026-01-31T12:00:00Z. Consumers continue there immediately. Earlier acknowledgments, also those of open
    transactions, lose their effect.
    """
    target = _target(to)
    with_client(loaded, config, lambda client: client.seek(topic, name, target))
    print_change(
        output,
        f"Moved subscription {name} of {topic} to {to}.",
        {"topic": str(parse_name(topic)), "subscription": name, "position": to},
    )


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--messages", "count", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum number of messages."
)
@config_option
@output_option
@click.pass_obj
def peek(loaded: LoadedPlugins, topic: str, name: str, count: int, config: Path | None, output: str) -> None:
    """
    Print the next messages of subscription NAME of TOPIC.

    Prints the first messages that it has not acknowledged, without delivering them.
    """
    for message in with_client(loaded, config, lambda client: client.peek(topic, name, count)):
        print_message(message, output)


def _target(text: str) -> MessageID | int | Start:
    ends: dict[str, Start] = {"earliest": "earliest", "latest": "latest"}
    if text in ends:
        return ends[text]
    if "@" in text:
        return MessageID.parse(text)
    try:
        return parse_time_ms(text)
    except InvalidInput as error:
        raise InvalidInput(
            f"invalid position {text!r}: write earliest, latest, the id of a message, or a time such as"
            " 2026-01-31T12:00:00Z"
        ) from error


async def _described(
    client: Client,
    layout: Layout,
    segment: Segment,
    name: str,
    lag: Mapping[str, SegmentLag],
    holders: Mapping[str, str],
) -> dict[str, Any]:
    full_name = str(layout.name_of(segment.id))
    subscribed = await client.host.subscription(str(layout.topic), name, full_name)
    pending = await subscribed.pending_acks.recover()
    cursor = await subscribed.cursor.load()  # last, as when a subscription is opened
    acknowledged = [f"{first}..{last}" if first != last else str(first) for first, last in cursor.deleted]
    acknowledged += [f"{at}[{','.join(map(str, sorted(indexes)))}]" for at, indexes in sorted(cursor.partial.items())]
    waiting = lag[full_name].undecided
    return {
        "segment": segment.id,
        "range": f"{segment.start:04x}-{segment.end:04x}",
        "state": segment.state.value,
        "dispatched_by": holders.get(full_name),
        "lag": lag[full_name].messages,
        "lag_is_exact": lag[full_name].exact,
        "undecided": 0 if waiting is None else waiting.messages,
        "waits_for": None if waiting is None else str(waiting.txn_id),
        "mark_delete": str(cursor.mark_delete),
        "acknowledged": acknowledged,
        "open_transactions": sorted(map(str, pending.open)),
        "incarnation": cursor.incarnation,
    }


def _row(segment: dict[str, Any]) -> dict[str, object]:
    """Return a segment as a row of a table."""
    row = {name: value for name, value in segment.items() if name != "lag_is_exact"}
    row["dispatched_by"] = (segment["dispatched_by"] or "").removeprefix("on ")
    row["mark_delete"] = position_of(segment["mark_delete"])
    if not segment["lag_is_exact"]:
        row["lag"] = f"at most {segment['lag']}"
    return row
