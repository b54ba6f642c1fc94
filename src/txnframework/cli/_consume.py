"""``txnframework topic consume``: print messages, and acknowledge them with a subscription."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from txnframework.cli.output import output_option, print_json_line, time_of
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client, Consumer, Message
from txnframework.errors import InvalidInput, ReceiveTimeout
from txnframework.model.dispatch import DEFAULT_TYPE, OtherType
from txnframework.model.names import SegmentName, parse_name

BATCH_MESSAGES = 1_000
"""The number of messages that are received and acknowledged together."""


@click.command()
@click.argument("topic")
@click.option(
    "--subscription",
    help="Receive from this subscription and acknowledge the printed messages; it is created if it does not exist.",
)
@click.option(
    "--type",
    "kind",
    show_default=DEFAULT_TYPE,
    help="With --subscription: the subscription type: exclusive, failover, shared, key_shared, or one of a plugin.",
)
@click.option("--messages", "count", type=click.IntRange(min=1), help="Stop after this number of messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages instead of stopping at the end.")
@click.option(
    "--wait-ms",
    type=click.IntRange(min=0),
    default=1_000,
    show_default=True,
    help="With --subscription and without --follow: stop after this time without a message.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    show_default="read_committed",
    help="Without --subscription: whether to print uncommitted messages too, marked as such.",
)
@click.option(
    "--compacted",
    is_flag=True,
    help="Without --subscription: read the result of 'topic compact', then the messages after it.",
)
@config_option
@output_option
@click.pass_obj
def consume(
    loaded: LoadedPlugins,
    topic: str,
    subscription: str | None,
    kind: str | None,
    count: int | None,
    follow: bool,
    wait_ms: int,
    isolation: str | None,
    compacted: bool,
    config: Path | None,
    output: str,
) -> None:
    """
    Print the messages of TOPIC, starting with the first.

    Without --subscription, nothing is acknowledged or changed. Standard error reports messages that wait for an open
    transaction. With --output json, each message is one JSON document on one line; a key or value that is not UTF-8
    text is base64 in key_base64 or value_base64. A null value is printed as (null), and is null in JSON.
    """
    if subscription is None and kind is not None:
        raise InvalidInput("--type needs --subscription")
    if subscription is not None and (isolation is not None or compacted):
        raise InvalidInput("--isolation and --compacted cannot be used with --subscription")
    left = count or sys.maxsize

    async def read(client: Client) -> None:
        nonlocal left
        async with await client.reader(
            topic, follow=follow, isolation=isolation or "read_committed", compacted=compacted
        ) as reader:
            async for message in reader:
                print_message(message, output)
                left -= 1
                if not left:
                    return

    async def receive(client: Client, name: str) -> None:
        nonlocal left
        async with await client.consumer(
            topic, name, type=OtherType(kind or DEFAULT_TYPE), start="earliest"
        ) as consumer:
            while left:
                try:
                    wait = None if follow else wait_ms
                    received = await consumer.receive_many(messages_max=min(left, BATCH_MESSAGES), timeout_ms=wait)
                except ReceiveTimeout:
                    return
                await _print_and_acknowledge(consumer, received, output)
                left -= len(received)

    async def work(client: Client) -> None:
        await (read(client) if subscription is None else receive(client, subscription))
        if left and not follow and isolation != "read_uncommitted":
            await _report_undecided(client, topic)

    with_client(loaded, config, work, stays=follow)


async def _report_undecided(client: Client, topic: str) -> None:
    """Report on standard error how many more messages wait for open transactions."""
    name = parse_name(topic)
    by_segment = await client.undecided(str(name.topic))
    count = by_segment.get(str(name), 0) if isinstance(name, SegmentName) else sum(by_segment.values())
    if count:
        messages, wait = ("message", "waits") if count == 1 else ("messages", "wait")
        click.echo(
            f"{count} more {messages} {wait} for an open transaction to end. 'txnframework transaction list' lists "
            "open transactions; --isolation read_uncommitted prints the messages.",
            err=True,
        )


async def _print_and_acknowledge(consumer: Consumer, received: Iterable[Message], output: str) -> None:
    """
    Print messages, then acknowledge them.

    After a crash in between, they are printed again.
    """
    printed = []
    try:
        for message in received:
            print_message(message, output)
            printed.append(message)
    finally:
        await consumer.ack(*printed)


def print_message(message: Message, output: str) -> None:
    """Print a message: its value as text, or the whole message as JSON on one line."""
    if output == "json":
        print_json_line(_document(message))
        return
    note = "" if message.committed else "  (not committed)"
    value = "(null)" if message.value is None else message.value.decode(errors="replace")
    click.echo(f"{value}{note}")


def _document(message: Message) -> dict[str, object]:
    document: dict[str, object] = {"id": str(message.id)}
    for name, content in (("key", message.key), ("value", message.value)):
        try:
            document[name] = None if content is None else content.decode()
        except UnicodeDecodeError:
            document[f"{name}_base64"] = base64.b64encode(content or b"").decode()
    document |= _headers_document(message.headers)
    document["published"] = time_of(message.published_ms)
    document["producer"] = message.producer
    document["redelivery_count"] = message.redelivery_count
    document["transaction"] = None if message.txn_id is None else str(message.txn_id)
    document["committed"] = message.committed
    return document


def _headers_document(headers: Mapping[str, bytes]) -> dict[str, object]:
    """Return text headers as ``headers``, and binary ones in base64 as ``headers_base64``."""
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for name, value in headers.items():
        try:
            text[name] = value.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(value).decode()
    return {"headers": text, **({"headers_base64": binary} if binary else {})}
