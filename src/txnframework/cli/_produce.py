"""``txnframework topic produce``: send messages from arguments or standard input."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import BinaryIO

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from txnframework.cli import terminal
from txnframework.cli.output import output_option, print_json
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client, Producer, Transaction
from txnframework.errors import InvalidInput

BATCH_MESSAGES = 1_000
"""The number of messages that one call sends."""

CHUNK_BYTES = 1 << 18
"""The number of bytes that one read takes from standard input."""


@click.command()
@click.argument("topic")
@click.argument("messages", nargs=-1)
@click.option("--key", help="Key of every message; messages with the same key keep their order.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every message; repeatable.")
@click.option("--null", "is_null", is_flag=True, help="Send one message with a null value instead of MESSAGES.")
@click.option("--transaction", "in_transaction", is_flag=True, help="Send all messages in one transaction.")
@config_option
@output_option
@click.pass_obj
def produce(
    loaded: LoadedPlugins,
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

    Each line is sent as soon as it is read. All messages are durable when this command ends with status 0. Without
    --transaction, the messages that were sent before an interruption remain. --null with --key deletes that key:
    compaction drops its messages.
    """
    pairs = _parse_headers(headers)
    if is_null and messages:
        raise InvalidInput("--null sends one message without a value: omit MESSAGES")

    async def work(client: Client) -> int:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(await client.producer(topic))
            txn = await stack.enter_async_context(client.transaction()) if in_transaction else None
            return await _send_all(producer, _batches(messages, is_null), key, pairs, txn)

    sent = with_client(loaded, config, work)
    if output == "json":
        print_json({"topic": topic, "sent": sent})
    else:
        click.echo(f"Sent {sent} {'message' if sent == 1 else 'messages'} to {topic}.")


async def _batches(messages: tuple[str, ...], is_null: bool) -> AsyncIterator[Sequence[bytes | None]]:
    if is_null:
        yield [None]
        return
    if messages:
        yield [message.encode() for message in messages]
        return
    if _stdin_is_terminal():
        click.echo("One message per line; Ctrl-D ends the input.", err=True)
    async for lines in stdin_lines():
        yield lines


async def _send_all(
    producer: Producer,
    batches: AsyncIterator[Sequence[bytes | None]],
    key: str | None,
    headers: dict[str, bytes],
    txn: Transaction | None,
) -> int:
    sent = 0
    with _progress() as progress:
        task = progress.add_task("sending", total=None)
        async for batch in batches:
            for first in range(0, len(batch), BATCH_MESSAGES):
                some = batch[first : first + BATCH_MESSAGES]
                await producer.send_many(some, key=None if key is None else key.encode(), headers=headers, txn=txn)
                sent += len(some)
                progress.update(task, completed=sent)
    return sent


def _stdin_is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _progress() -> Progress:
    """Return a transient counter on standard error; disabled without a terminal, and while the user types input."""
    console = terminal.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal or _stdin_is_terminal())


def _parse_headers(arguments: Iterable[str]) -> dict[str, bytes]:
    found = {}
    for one in arguments:
        name, separator, value = one.partition("=")
        if not (name and separator):
            raise InvalidInput(f"invalid header {one!r}: write NAME=VALUE")
        found[name] = value.encode()
    return found


async def stdin_lines() -> AsyncIterator[list[bytes]]:
    """
    Yield the lines of standard input as soon as they are available, without their line ends.

    The event loop runs while this waits, so the client keeps its session and Control-C works.
    """
    if sys.stdin is None:
        raise InvalidInput("standard input is closed: pass the messages as arguments")
    partial = b""
    while chunk := await _read(sys.stdin.buffer):
        *lines, partial = (partial + chunk).split(b"\n")
        if lines:
            yield [line.rstrip(b"\r") for line in lines]
    if partial:
        yield [partial.rstrip(b"\r")]


async def _read(source: BinaryIO) -> bytes:
    """Return the available bytes, at least one; none at the end."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(source.fileno(), readable.set)
    except (OSError, NotImplementedError):
        return source.read(CHUNK_BYTES)  # a file: always readable, and not accepted by the selector
    try:
        await readable.wait()
    finally:
        loop.remove_reader(source.fileno())
    return os.read(source.fileno(), CHUNK_BYTES)
