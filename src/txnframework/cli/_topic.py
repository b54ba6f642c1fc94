"""``txnframework topic``: topics and what stands in them."""

from __future__ import annotations

from pathlib import Path

import click

from txnframework.broker import Order
from txnframework.cli._asking import ask, yes_option
from txnframework.cli._config_option import config_option
from txnframework.cli._loaded import Loaded
from txnframework.cli._messages import consume, produce
from txnframework.cli._opening import with_client
from txnframework.cli._served import served
from txnframework.cli.output import output_option, print_facts, print_json, print_records
from txnframework.client import Client
from txnframework.errors import InvalidInput
from txnframework.model.layout import HASH_MAX, Layout, Segment
from txnframework.model.names import TOPIC_DOMAINS
from txnframework.model.positions import EARLIEST, EntryRange

ALL_MESSAGES = 2**62


@click.group(no_args_is_help=True)
def topic() -> None:
    """
    Make, change and look at topics; send to them and read them.

    A name without a domain is a scalable topic: 'orders' means topic://public/default/orders, which can be split. A
    persistent:// topic has one segment, for ever.
    """


@topic.command("list")
@click.argument("namespace", required=False)
@click.option("--domain", type=click.Choice(TOPIC_DOMAINS), help="Only those of topic://, or of persistent://.")
@config_option
@output_option
@click.pass_obj
def list_topics(loaded: Loaded, namespace: str | None, domain: str | None, config: Path | None, output: str) -> None:
    """
    List topics.

    All of them, or those of NAMESPACE (written as tenant/namespace).
    """
    tenant, _, name = (namespace or "").partition("/")
    if namespace is not None and not (tenant and name and "/" not in name):
        raise InvalidInput(f"{namespace!r} is not a namespace: write tenant/namespace, such as public/default")

    async def work(client: Client) -> list[dict[str, object]]:
        found = []
        for one in await client.topics.list(tenant or None, name or None, domain):
            layout = await client.topics.layout(one)
            counts = {"segments": len(layout.active()), "subscriptions": len(layout.subscriptions)}
            found.append({"topic": str(one), "domain": one.domain, **counts})
        return found

    topics = with_client(loaded, config, work)
    if output == "json":
        print_json(topics)
    elif topics:
        print_records(topics)
    else:
        click.echo("There is no topic; 'txnframework topic create NAME' makes one.")


@topic.command()
@click.argument("topic")
@click.option(
    "--segments", type=click.IntRange(1, HASH_MAX + 1), default=1, show_default=True, help="How many to begin with."
)
@click.option("--exist-ok", is_flag=True, help="Leave a topic that is there as it is.")
@config_option
@click.pass_obj
def create(loaded: Loaded, topic: str, segments: int, exist_ok: bool, config: Path | None) -> None:
    """Make TOPIC."""
    with_client(loaded, config, lambda client: client.create_topic(topic, segments=segments, exist_ok=exist_ok))
    click.echo(f"{topic} is there.")


@topic.command()
@click.argument("topic")
@click.argument("segment_id", type=click.IntRange(min=0))
@config_option
@click.pass_obj
def split(loaded: Loaded, topic: str, segment_id: int, config: Path | None) -> None:
    """
    Split a segment of TOPIC in the middle of its hash range.

    Open transactions go on: what they wrote stays, what they still write goes to the children.
    """
    low, high = with_client(loaded, config, lambda client: client.split(topic, segment_id))
    click.echo(f"Segment {segment_id} became {low} and {high}.")


@topic.command()
@click.argument("topic")
@click.argument("segment_id", type=click.IntRange(min=0))
@click.argument("other_id", type=click.IntRange(min=0))
@config_option
@click.pass_obj
def merge(loaded: Loaded, topic: str, segment_id: int, other_id: int, config: Path | None) -> None:
    """Merge two neighbouring segments of TOPIC."""
    child = with_client(loaded, config, lambda client: client.merge(topic, segment_id, other_id))
    click.echo(f"Segments {segment_id} and {other_id} became {child}.")


@topic.command()
@click.argument("topic")
@config_option
@output_option
@click.pass_obj
def describe(loaded: Loaded, topic: str, config: Path | None, output: str) -> None:
    """
    Show the segments of TOPIC and how far each may be read.

    SERVED says which plugins serve its transactions, or why it works without. READABLE is the last position that is
    decided; what stands between it and LAST was written by transactions that are still open.
    """

    async def work(client: Client) -> tuple[Layout, str, list[dict[str, object]]]:
        layout = await client.layout(topic)
        name = layout.topic
        by = client.host.config.domain(f"{name.tenant}/{name.namespace}", name.domain)
        return (
            layout,
            served(by, loaded.registry),
            [await _described(client, layout, segment) for segment in layout.in_order()],
        )

    layout, by, segments = with_client(loaded, config, work)
    subscriptions = list(layout.subscriptions)
    if output == "json":
        print_json(
            {
                "topic": str(layout.topic),
                "domain": layout.topic.domain,
                "served": by,
                "epoch": layout.epoch,
                "subscriptions": subscriptions,
                "segments": segments,
            }
        )
        return
    print_facts(
        {
            "topic": layout.topic,
            "served": by,
            "epoch": layout.epoch,
            "subscriptions": ", ".join(subscriptions) or "none",
        }
    )
    print_records(segments)


async def _described(client: Client, layout: Layout, segment: Segment) -> dict[str, object]:
    opened = await client.host.segment(str(layout.name_of(segment.id)))
    tail = await opened.ledger.tail()
    readable = await opened.buffer.max_read_position()
    stored = await opened.ledger.count(EntryRange(EARLIEST, tail.last_confirmed), ALL_MESSAGES)
    return {
        "segment": segment.id,
        "range": f"{segment.start:04x}-{segment.end:04x}",
        "state": segment.state.value,
        "parents": list(segment.parents),
        "children": list(segment.children),
        "sealed": tail.sealed,
        "messages": stored.messages,
        "last": str(tail.last_confirmed),
        "readable": str(readable),
    }


@topic.command()
@click.argument("topic")
@click.option("--force", is_flag=True, help="Also if it has subscriptions, or open transactions took part in it.")
@yes_option
@config_option
@click.pass_obj
def delete(loaded: Loaded, topic: str, force: bool, yes: bool, config: Path | None) -> None:
    """Delete TOPIC with its messages and its subscriptions."""
    if not yes:
        ask("Its messages and subscriptions go for ever. Go on?")
    with_client(loaded, config, lambda client: client.delete_topic(topic, force=force))
    click.echo(f"{topic} is gone.")


@topic.command()
@click.argument("topic")
@click.option(
    "--order",
    type=click.Choice(["position", "commit"]),
    default="position",
    show_default=True,
    help="Which message of a key is its last: by where it stands, or by when its transaction was committed.",
)
@config_option
@click.pass_obj
def compact(loaded: Loaded, topic: str, order: Order, config: Path | None) -> None:
    """
    Write the last committed message of each key of TOPIC beside it.

    The topic stays as it is; 'topic consume --compacted' reads what was written, and then goes on in the topic.
    """
    with_client(loaded, config, lambda client: client.compact(topic, order=order))
    click.echo(f"{topic} is compacted.")


topic.add_command(produce)
topic.add_command(consume)
