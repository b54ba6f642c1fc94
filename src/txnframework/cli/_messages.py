"""``txnframework topic produce`` and ``consume``: messages from and to a terminal."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from txnframework.cli import terminal
from txnframework.cli._config_option import config_option
from txnframework.cli._lines import lines_of_input
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import with_client
from txnframework.cli.output import output_option, print_json, print_json_line, time_of
from txnframework.client import Client, Consumer, Message, Producer, Transaction
from txnframework.errors import InvalidInput, ReceiveTimeout
from txnframework.model.dispatching import DEFAULT_TYPE
from txnframework.model.names import SegmentName, parse_name

TOGETHER = 1_000
"""How many messages are sent, or received and acknowledged, at a time."""


@click.command()
@click.argument("topic")
@click.argument("messages", nargs=-1)
@click.option("--key", help="The key of every message; messages of one key keep their order.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every message; repeatable.")
@click.option("--null", "is_null", is_flag=True, help="Send one message whose value is null, instead of MESSAGES.")
@click.option("--transaction", "in_transaction", is_flag=True, help="Send all of them in one transaction.")
@config_option
@output_option
@click.pass_obj
def produce(
    loaded: Loaded,
    topic: str,
    messages: tuple[str, ...],
    key: str | None,
    headers: tuple[str, ...],
    is_null: bool,
    in_transaction: bool,
    config: Path | None,
    output: str,
) -> None:
    """
    Send MESSAGES, or every line of standard input, to TOPIC.

    Lines are sent as they come. Each message is durable when this command ends with status 0. Without --transaction, an
    interruption leaves those that were sent. --null with --key deletes that key: compaction drops its messages.
    """
    pairs = _headers(headers)
    if is_null and messages:
        raise InvalidInput("--null sends one message without a value: leave MESSAGES out")

    async def work(client: Client) -> int:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(await client.producer(topic))
            txn = await stack.enter_async_context(client.transaction()) if in_transaction else None
            return await _send_all(producer, _lines(messages, is_null), key, pairs, txn)

    sent = with_client(loaded, config, work)
    if output == "json":
        print_json({"topic": topic, "sent": sent})
    else:
        click.echo(f"Sent {sent} {'message' if sent == 1 else 'messages'} to {topic}.")


async def _lines(messages: tuple[str, ...], is_null: bool) -> AsyncIterator[Sequence[bytes | None]]:
    if is_null:
        yield [None]
        return
    if messages:
        yield [message.encode() for message in messages]
        return
    if _is_typed():
        click.echo("One message a line; Ctrl-D ends.", err=True)
    async for lines in lines_of_input():
        yield lines


async def _send_all(
    producer: Producer,
    lines: AsyncIterator[Sequence[bytes | None]],
    key: str | None,
    headers: dict[str, bytes],
    txn: Transaction | None,
) -> int:
    sent = 0
    with _progress() as progress:
        task = progress.add_task("sending", total=None)
        async for come in lines:
            for first in range(0, len(come), TOGETHER):
                some = come[first : first + TOGETHER]
                await producer.send_many(some, key=None if key is None else key.encode(), headers=headers, txn=txn)
                sent += len(some)
                progress.update(task, completed=sent)
    return sent


def _is_typed() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _progress() -> Progress:
    """Return a counter on standard error that leaves nothing behind; it is off where nobody looks or somebody types."""
    console = terminal.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal or _is_typed())


def _headers(given: Iterable[str]) -> dict[str, bytes]:
    found = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not (name and separator):
            raise InvalidInput(f"{one!r} is not a header: write NAME=VALUE")
        found[name] = value.encode()
    return found


@click.command()
@click.argument("topic")
@click.option("--subscription", help="Receive from it and acknowledge what was printed; it is made if it is not there.")
@click.option(
    "--type",
    "kind",
    show_default=DEFAULT_TYPE,
    help="With --subscription: how it is shared; exclusive, failover, shared, key_shared, or what a plugin brings.",
)
@click.option("--messages", "count", type=click.IntRange(min=1), help="Stop after so many.")
@click.option("--follow", is_flag=True, help="Wait for messages to come, instead of stopping at the end.")
@click.option(
    "--wait-ms",
    type=click.IntRange(min=0),
    default=1_000,
    show_default=True,
    help="With --subscription and without --follow: how long nothing has to come before this is the end.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    show_default="read_committed",
    help="Without --subscription: whether to show what is not committed, marked as such.",
)
@click.option("--compacted", is_flag=True, help="Without --subscription: read what 'topic compact' kept, then go on.")
@config_option
@output_option
@click.pass_obj
def consume(
    loaded: Loaded,
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
    Print the messages of TOPIC from its first one on.

    Without --subscription it only looks and leaves no trace. What waits for an open transaction is told of on standard
    error. With --output json there is one document a line; a key or
    value that is not UTF-8 text stands there in base64, as key_base64 or value_base64. A null value is printed as
    (null), and is null in JSON.
    """
    if subscription is None and kind is not None:
        raise InvalidInput("--type is how a subscription is shared: name one with --subscription")
    if subscription is not None and (isolation is not None or compacted):
        raise InvalidInput("--isolation and --compacted are for looking: leave --subscription out")
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
        async with await client.consumer(topic, name, type=kind or DEFAULT_TYPE, start="earliest") as consumer:
            while left:
                try:
                    wait = None if follow else wait_ms
                    received = await consumer.receive_many(messages_max=min(left, TOGETHER), timeout_ms=wait)
                except ReceiveTimeout:
                    return
                await _print_and_acknowledge(consumer, received, output)
                left -= len(received)

    async def work(client: Client) -> None:
        await (read(client) if subscription is None else receive(client, subscription))
        if left and not follow and isolation != "read_uncommitted":
            await _tell_what_is_held_back(client, topic)

    with_client(loaded, config, work, stays=follow)


async def _tell_what_is_held_back(client: Client, topic: str) -> None:
    """Say, beside what was printed, that this was not the end of the topic."""
    name = parse_name(topic)
    by_segment = await client.undecided(str(name.topic))
    count = by_segment.get(str(name), 0) if isinstance(name, SegmentName) else sum(by_segment.values())
    if count:
        messages, wait = ("message", "waits") if count == 1 else ("messages", "wait")
        click.echo(
            f"{count} more {messages} {wait} for an open transaction to end: 'txnframework transaction list' shows it, "
            "--isolation read_uncommitted what stands there.",
            err=True,
        )


async def _print_and_acknowledge(consumer: Consumer, received: Iterable[Message], output: str) -> None:
    """Print, then acknowledge what could be printed: a crash in between prints it again."""
    printed = []
    try:
        for message in received:
            print_message(message, output)
            printed.append(message)
    finally:
        await consumer.ack(*printed)


def print_message(message: Message, output: str) -> None:
    """Print a message: its value as text, or all of it as JSON on one line."""
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
    """Return headers as text, and those that are none by another name, so that nothing of them is lost."""
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for name, value in headers.items():
        try:
            text[name] = value.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(value).decode()
    return {"headers": text, **({"headers_base64": binary} if binary else {})}
