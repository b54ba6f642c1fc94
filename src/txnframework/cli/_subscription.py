"""``txnframework subscription``: who reads a topic, and how far they are."""

from __future__ import annotations

from pathlib import Path

import click

from txnframework.broker import Start
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import config_option, with_client
from txnframework.cli._output import output_option, print_facts, print_json, print_records
from txnframework.client import Client
from txnframework.errors import SubscriptionNotFound
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
    """Make subscription NAME of TOPIC; one that is there stays as it is."""
    with_client(loaded, config, lambda client: client.subscribe(topic, name, start=start))
    click.echo(f"Subscription {name} of {topic} is there.")


@subscription.command()
@click.argument("topic")
@click.argument("name")
@click.confirmation_option(prompt="What it acknowledged is forgotten with it. Go on?")
@config_option
@click.pass_obj
def delete(loaded: Loaded, topic: str, name: str, config: Path | None) -> None:
    """Give subscription NAME of TOPIC up, with all that it acknowledged."""
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

    DONE TO is the position up to which everything is acknowledged, BEYOND what is acknowledged after it, HELD BY the
    open transactions that have acknowledged something there.
    """

    async def work(client: Client) -> tuple[Layout, list[dict[str, object]]]:
        layout = await client.layout(topic)
        if name not in layout.subscriptions:
            raise SubscriptionNotFound(str(layout.topic), name)
        return layout, [await _described(client, layout, segment, name) for segment in layout.in_order()]

    layout, segments = with_client(loaded, config, work)
    if output == "json":
        print_json({"topic": str(layout.topic), "subscription": name, "segments": segments})
        return
    print_facts({"topic": layout.topic, "subscription": name})
    print_records(segments)


async def _described(client: Client, layout: Layout, segment: Segment, name: str) -> dict[str, object]:
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
        "done_to": str(cursor.mark_delete),
        "beyond": beyond,
        "held_by": sorted(map(str, pending.open)),
        "incarnation": cursor.incarnation,
    }
