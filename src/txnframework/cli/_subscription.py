"""``txnframework subscription``: who reads a topic, and how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from txnframework.broker import Start
from txnframework.cli._asking import ask, yes_option
from txnframework.cli._config_option import config_option
from txnframework.cli._loaded import Loaded
from txnframework.cli._messages import print_message
from txnframework.cli._opening import with_client
from txnframework.cli._typed import time_ms_of
from txnframework.cli.output import output_option, print_facts, print_json, print_records
from txnframework.client import Client, MessageID, SegmentLag
from txnframework.errors import InvalidInput, SubscriptionNotFound
from txnframework.model.layout import Layout, Segment


@click.group(no_args_is_help=True)
def subscription() -> None:
    """Make and look at the subscriptions of a topic, and move them."""


@subscription.command("list")
@click.argument("topic")
@config_option
@output_option
@click.pass_obj
def list_subscriptions(loaded: Loaded, topic: str, config: Path | None, output: str) -> None:
    """List the subscriptions of TOPIC."""
    layout = with_client(loaded, config, lambda client: client.layout(topic))
    if output == "json":
        print_json(list(layout.subscriptions))
        return
    for name in layout.subscriptions:
        click.echo(name)
    if not layout.subscriptions:
        click.echo(f"{layout.topic} has no subscription; 'txnframework subscription create' makes one.")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="Begin at the first message that is there, or after the last that may be read now.",
)
@config_option
@click.pass_obj
def create(loaded: Loaded, topic: str, name: str, start: Start, config: Path | None) -> None:
    """
    Make subscription NAME of TOPIC.

    One that is there stays as it is.
    """
    with_client(loaded, config, lambda client: client.subscribe(topic, name, start=start))
    click.echo(f"Subscription {name} of {topic} is there.")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@yes_option
@config_option
@click.pass_obj
def delete(loaded: Loaded, topic: str, name: str, yes: bool, config: Path | None) -> None:
    """
    Give subscription NAME of TOPIC up.

    All that it acknowledged is forgotten.
    """
    if not yes:
        ask("What it acknowledged is forgotten with it. Go on?")
    with_client(loaded, config, lambda client: client.unsubscribe(topic, name))
    click.echo(f"Subscription {name} of {topic} is gone.")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@config_option
@output_option
@click.pass_obj
def describe(loaded: Loaded, topic: str, name: str, config: Path | None, output: str) -> None:
    """
    Show how far subscription NAME of TOPIC is on every segment.

    AHEAD is how many messages it may read and has not acknowledged ("at most" where aborted ones may be among them),
    DONE TO the position up to which everything is acknowledged, HELD BY the open transactions that have acknowledged
    something there. BEYOND is what is acknowledged after DONE TO: ranges of entries, and of batches the indexes. Only a
    message that is not acknowledged, or not passed by a consumer because its transaction was aborted, holds DONE TO
    back. Delivery stops at subscriptions.deleted_ranges_max ranges.
    """

    async def work(client: Client) -> tuple[Layout, list[dict[str, Any]]]:
        layout = await client.layout(topic)
        if name not in layout.subscriptions:
            raise SubscriptionNotFound(str(layout.topic), name)
        lag = {one.segment: one for one in (await client.lag(topic, name)).segments}
        return layout, [await _described(client, layout, segment, name, lag) for segment in layout.in_order()]

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
@click.pass_obj
def seek(loaded: Loaded, topic: str, name: str, to: str, config: Path | None) -> None:
    """
    Move subscription NAME of TOPIC.

    TO is 'earliest', 'latest', the id of a message (as 'topic consume --output json' shows it), which is delivered next
    then, or a time such as 2026-01-31T12:00:00Z. Consumers go on from there at once. What was acknowledged before, also
    in transactions that are still open, has no effect any more.
    """
    target = _target(to)
    with_client(loaded, config, lambda client: client.seek(topic, name, target))
    click.echo(f"Subscription {name} of {topic} goes on at {to}.")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.option("--messages", "count", type=click.IntRange(min=1), default=10, show_default=True, help="So many at most.")
@config_option
@output_option
@click.pass_obj
def peek(loaded: Loaded, topic: str, name: str, count: int, config: Path | None, output: str) -> None:
    """
    Print what is delivered next.

    The first messages that subscription NAME of TOPIC has not acknowledged, without delivering them.
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
        return time_ms_of(text)
    except InvalidInput as error:
        raise InvalidInput(
            f"{text!r} is not where a subscription can go: write earliest, latest, the id of a message, or a time such"
            " as 2026-01-31T12:00:00Z"
        ) from error


async def _described(
    client: Client, layout: Layout, segment: Segment, name: str, lag: Mapping[str, SegmentLag]
) -> dict[str, Any]:
    full_name = str(layout.name_of(segment.id))
    subscribed = await client.host.subscription(str(layout.topic), name, full_name)
    pending = await subscribed.pending_acks.recover()
    cursor = await subscribed.cursor.load()  # last, as whoever opens a subscription does
    beyond = [f"{first}..{last}" if first != last else str(first) for first, last in cursor.deleted]
    beyond += [f"{at}[{','.join(map(str, sorted(indexes)))}]" for at, indexes in sorted(cursor.partial.items())]
    return {
        "segment": segment.id,
        "range": f"{segment.start:04x}-{segment.end:04x}",
        "state": segment.state.value,
        "ahead": lag[full_name].messages,
        "ahead_is_exact": lag[full_name].exact,
        "done_to": str(cursor.mark_delete),
        "beyond": beyond,
        "held_by": sorted(map(str, pending.open)),
        "incarnation": cursor.incarnation,
    }


def _row(segment: dict[str, Any]) -> dict[str, object]:
    """Return a segment as people read it."""
    row = {name: value for name, value in segment.items() if name != "ahead_is_exact"}
    if not segment["ahead_is_exact"]:
        row["ahead"] = f"at most {segment['ahead']}"
    return row
