"""``txnframework topic``: manage topics, and send and print messages."""

from __future__ import annotations

from pathlib import Path

import click

from txnframework.broker import Order
from txnframework.cli._configuration import domain_summary
from txnframework.cli._consume import consume
from txnframework.cli._migrate import migrate
from txnframework.cli._options import confirm, require_answer, yes_option
from txnframework.cli._produce import produce
from txnframework.cli.output import output_option, position_of, print_change, print_facts, print_json, print_records
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client, SegmentDescription
from txnframework.errors import InvalidInput
from txnframework.model.layout import HASH_MAX, Layout
from txnframework.model.names import TOPIC_DOMAINS, parse_name


@click.group(no_args_is_help=True)
def topic() -> None:
    """
    Manage topics; send and print messages.

    A name without a domain is a scalable topic: 'orders' means topic://public/default/orders, which can be split. A
    persistent:// topic always has one segment.
    """


@topic.command("list")
@click.argument("namespace", required=False)
@click.option("--domain", type=click.Choice(TOPIC_DOMAINS), help="Only topics of this domain.")
@config_option
@output_option
@click.pass_obj
def list_topics(
    loaded: LoadedPlugins, namespace: str | None, domain: str | None, config: Path | None, output: str
) -> None:
    """
    List topics.

    Lists all topics, or those of NAMESPACE (written as tenant/namespace).
    """
    tenant, _, name = (namespace or "").partition("/")
    if namespace is not None and not (tenant and name and "/" not in name):
        raise InvalidInput(f"invalid namespace {namespace!r}: write tenant/namespace, such as public/default")

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
        click.echo("No topics. 'txnframework topic create TOPIC' creates one.")


@topic.command()
@click.argument("topic")
@click.option(
    "--segments", type=click.IntRange(1, HASH_MAX + 1), default=1, show_default=True, help="Initial number of segments."
)
@click.option("--exist-ok", is_flag=True, help="Succeed without a change if the topic exists.")
@config_option
@output_option
@click.pass_obj
def create(loaded: LoadedPlugins, topic: str, segments: int, exist_ok: bool, config: Path | None, output: str) -> None:
    """Create TOPIC."""

    async def work(client: Client) -> Layout:
        await client.create_topic(topic, segments=segments, exist_ok=exist_ok)
        return await client.layout(topic)

    layout = with_client(loaded, config, work)
    print_change(
        output,
        f"Topic {topic} exists." if exist_ok else f"Created topic {topic}.",
        {"topic": str(layout.topic), "segments": [one.id for one in layout.active()]},
    )


@topic.command()
@click.argument("topic")
@click.argument("segment_id", type=click.IntRange(min=0))
@config_option
@output_option
@click.pass_obj
def split(loaded: LoadedPlugins, topic: str, segment_id: int, config: Path | None, output: str) -> None:
    """
    Split a segment of TOPIC in the middle of its hash range.

    Open transactions are unaffected: their earlier writes stay, and later writes go to the children.
    """
    low, high = with_client(loaded, config, lambda client: client.split(topic, segment_id))
    print_change(
        output,
        f"Split segment {segment_id} into {low} and {high}.",
        {"topic": str(parse_name(topic)), "parents": [segment_id], "children": [low, high]},
    )


@topic.command()
@click.argument("topic")
@click.argument("segment_id", type=click.IntRange(min=0))
@click.argument("other_id", type=click.IntRange(min=0))
@config_option
@output_option
@click.pass_obj
def merge(loaded: LoadedPlugins, topic: str, segment_id: int, other_id: int, config: Path | None, output: str) -> None:
    """Merge two neighbouring segments of TOPIC."""
    child = with_client(loaded, config, lambda client: client.merge(topic, segment_id, other_id))
    print_change(
        output,
        f"Merged segments {segment_id} and {other_id} into {child}.",
        {"topic": str(parse_name(topic)), "parents": [segment_id, other_id], "children": [child]},
    )


@topic.command()
@click.argument("topic")
@config_option
@output_option
@click.pass_obj
def describe(loaded: LoadedPlugins, topic: str, config: Path | None, output: str) -> None:
    """
    Show the segments of TOPIC, and the last readable position of each.

    PLUGINS lists the plugins that serve its transactions, or says why it has no transactions. LAST is the last
    position. READABLE is the last position that read-committed readers can read; messages between READABLE and LAST
    wait for an open transaction. 'before 2:0' is the position before the first entry of ledger 2, and 'start' the
    position before all entries.
    """

    async def work(client: Client) -> tuple[Layout, str, list[dict[str, object]]]:
        described = await client.describe_topic(topic)
        name = described.layout.topic
        section = client.host.config.domain(f"{name.tenant}/{name.namespace}", name.domain)
        return described.layout, domain_summary(section, loaded.registry), list(map(_document_of, described.segments))

    layout, plugins, segments = with_client(loaded, config, work)
    subscriptions = list(layout.subscriptions)
    migrates_to = None if layout.migration is None else str(layout.migration.to)
    migrated_from = None if layout.origin is None else str(layout.origin.topic)
    if output == "json":
        print_json(
            {
                "topic": str(layout.topic),
                "domain": layout.topic.domain,
                "plugins": plugins,
                "epoch": layout.epoch,
                "migrates_to": migrates_to,
                "migrated_from": migrated_from,
                "subscriptions": subscriptions,
                "segments": segments,
            }
        )
        return
    facts = {
        "topic": layout.topic,
        "plugins": plugins,
        "epoch": layout.epoch,
        "migrates to": migrates_to,
        "migrated from": migrated_from,
        "subscriptions": ", ".join(subscriptions) or "none",
    }
    print_facts({name: value for name, value in facts.items() if value is not None})
    positions = ("last", "readable")
    print_records([{**one, **{name: position_of(str(one[name])) for name in positions}} for one in segments])


def _document_of(described: SegmentDescription) -> dict[str, object]:
    segment = described.segment
    return {
        "segment": segment.id,
        "range": f"{segment.start:04x}-{segment.end:04x}",
        "state": segment.state.value,
        "parents": list(segment.parents),
        "children": list(segment.children),
        "sealed": described.sealed,
        "messages": described.messages,
        "last": str(described.last),
        "readable": str(described.readable),
    }


@topic.command()
@click.argument("topic")
@click.option("--force", is_flag=True, help="Delete it even if it has subscriptions or messages of open transactions.")
@yes_option
@config_option
@output_option
@click.pass_obj
def delete(loaded: LoadedPlugins, topic: str, force: bool, yes: bool, config: Path | None, output: str) -> None:
    """Delete TOPIC with its messages and its subscriptions."""
    require_answer(output, yes)
    if not yes:
        confirm("This deletes its messages and subscriptions permanently. Continue?")
    with_client(loaded, config, lambda client: client.delete_topic(topic, force=force))
    print_change(output, f"Deleted topic {topic}.", {"topic": str(parse_name(topic)), "deleted": True})


@topic.command()
@click.argument("topic")
@click.option(
    "--order",
    type=click.Choice(["position", "commit"]),
    default="position",
    show_default=True,
    help="Which message of a key is the last: by position, or by the time of its commit.",
)
@config_option
@output_option
@click.pass_obj
def compact(loaded: LoadedPlugins, topic: str, order: Order, config: Path | None, output: str) -> None:
    """
    Write a compacted copy of TOPIC: the last committed message of each key.

    The topic itself does not change. 'topic consume --compacted' reads the copy, then the later messages of the topic.
    """
    with_client(loaded, config, lambda client: client.compact(topic, order=order))
    print_change(output, f"Compacted topic {topic}.", {"topic": str(parse_name(topic)), "order": order})


topic.add_command(migrate)
topic.add_command(produce)
topic.add_command(consume)
