"""Data cannot steer the terminal that a command prints on."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest

from txnframework.broker.topics import subscriptions, topics
from txnframework.cli._app import make_group
from txnframework.client import _base, _client, _transaction_admin

if TYPE_CHECKING:
    from conftest import Stores

EVIL = "\x1b]0;OWNED\x07\x1b[2J\x1b[31m\x1b]52;c;cm0gLXJmIH4=\x07\x9b31m\rover\x7f\u202etxt\u2066"
RAW = b"pay\x00\x1b[2J\x9b31m\rover\xff"
TOPIC, SPOOFED = "orders", "\u202egnp.exe"
SUBSCRIPTION = f"sub{EVIL}"
FORBIDDEN = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *map(chr, range(0x202A, 0x202F))} | {
    *map(chr, range(0x2066, 0x206A))
}
LINE_ENDS = {"\n", "\t"}

COMMANDS = {
    "audit": ("--to", EVIL),
    "check": ("--connect",),
    "copy": ("--to", EVIL),
    "doctor": (),
    "explain": (EVIL,),
    "init": (),
    "metrics": (),
    "new-plugin": (EVIL,),
    "plugins": (),
    "restore": ("--dry-run", "--restored", EVIL),
    "server": (EVIL,),
    "subscription create": (TOPIC, SUBSCRIPTION),
    "subscription delete": (TOPIC, SUBSCRIPTION, "--yes"),
    "subscription describe": (TOPIC, SUBSCRIPTION),
    "subscription list": (TOPIC,),
    "subscription peek": (TOPIC, "plain"),
    "subscription seek": (TOPIC, "plain", EVIL),
    "topic compact": (f"{TOPIC}{EVIL}",),
    "topic consume": (TOPIC,),
    "topic create": (f"new{EVIL}",),
    "topic delete": (SPOOFED, "--yes"),
    "topic describe": (TOPIC,),
    "topic list": (),
    "topic merge": (SPOOFED, "0", "7"),
    "topic migrate": (SPOOFED, "--dry-run"),
    "topic produce": (SPOOFED, EVIL, "--header", f"{EVIL}=v"),
    "topic split": (SPOOFED, "7"),
    "transaction abort": (EVIL,),
    "transaction describe": (EVIL,),
    "transaction find-hanging": ("--age-ms", "0"),
    "transaction list": (),
    "transaction settle": (EVIL,),
    "maintain": (),
}
"""Every command of the core, as a user may type it where all data is hostile."""
IN_JSON = ("subscription describe", "subscription list", "subscription peek", "topic consume", "topic describe")
IN_JSON += ("topic list", "transaction find-hanging", "transaction list", "plugins", "doctor")
IN_JSON += ("maintain", "subscription create", "subscription delete", "subscription seek", "topic compact")
IN_JSON += ("topic create", "topic delete", "topic merge", "topic split")


async def fill(stores: Stores, earlier: pytest.MonkeyPatch) -> str:
    """Store hostile data, names that earlier releases took included; return the id of an open transaction."""
    earlier.setattr(topics, "check_new_topic", lambda topic: None)
    earlier.setattr(subscriptions, "check_new_name", lambda name, what: name)
    earlier.setattr(_base, "check_known_name", lambda name, what: name)
    earlier.setattr(_client, "check_new_name", lambda name, what: name)
    earlier.setattr(_transaction_admin, "check_principal", lambda given: None)
    async with stores.open() as client:
        for topic in (TOPIC, SPOOFED):
            await client.create_topic(topic)
        for name in (SUBSCRIPTION, "plain"):
            await client.subscribe(TOPIC, name, start="earliest")
        async with await client.producer(TOPIC, name=f"producer{EVIL}") as producer:
            await producer.send(RAW, key=RAW, headers={EVIL: RAW, "plain": b"v"})
            await producer.send(EVIL.encode())
            async with client.transaction(principal=EVIL) as committed:
                await producer.send(EVIL.encode(), txn=committed)
            left = client.transaction(principal=EVIL, outlives_client=True)
            await left.__aenter__()
            await producer.send(EVIL.encode(), txn=left)
            return str(left.id)


def leaves() -> set[str]:
    """Return every command of the core by its whole name."""
    found: set[str] = set()
    for command in make_group().load_own():
        if isinstance(command, click.Group):
            found |= {f"{command.name} {name}" for name in command.commands}
        else:
            found.add(str(command.name))
    return found


def raw_in(text: str) -> set[str]:
    return (FORBIDDEN - LINE_ENDS) & set(text)


def test_every_command_is_tried() -> None:
    """A command that is new has to be named above."""
    assert set(COMMANDS) == leaves()


def test_no_command_prints_control_characters_of_data(
    cli: Any, shared: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a table, nor in JSON, nor in an error."""
    with monkeypatch.context() as earlier:
        txn_id = asyncio.run(fill(shared, earlier))
    seen = ""
    # What only looks comes first: what deletes would leave nothing to look at.
    for name in sorted(COMMANDS, key=lambda name: name.endswith(("delete", "settle", "abort", "maintain"))):
        variants: list[tuple[str, ...]] = [COMMANDS[name]]
        if name in IN_JSON:
            variants.append((*COMMANDS[name], "--output", "json"))
        if name in ("transaction describe", "transaction abort"):
            variants.append((txn_id,))
        for arguments in variants:
            done = cli(*name.split(), *arguments)
            assert not raw_in(done.out + done.err), f"{name} {arguments!r} printed {raw_in(done.out + done.err)!r}"
            seen += done.out + done.err
    for written in (r"\x1b]0;OWNED", r"\x9b31m", r"\u202e", r"\x7f"):
        assert written in seen, "data was not shown at all"


def test_json_keeps_data_whole(cli: Any, shared: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON output preserves every byte."""
    with monkeypatch.context() as earlier:
        asyncio.run(fill(shared, earlier))
    first, second, *_ = map(json.loads, cli("topic", "consume", TOPIC, "--output", "json").out.splitlines())
    assert base64.b64decode(first["value_base64"]) == base64.b64decode(first["key_base64"]) == RAW
    assert first["headers"] == {"plain": "v"}
    assert base64.b64decode(first["headers_base64"][EVIL]) == RAW
    assert first["producer"] == f"producer{EVIL}"
    assert second["value"] == EVIL
    assert json.loads(cli("subscription", "list", TOPIC, "--output", "json").out) == ["plain", SUBSCRIPTION]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.usefixtures("without_server")
@pytest.mark.parametrize("command", ["topic consume", "topic list", "subscription list", "topic compact"])
def test_on_a_terminal(cli: Any, shared: Stores, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """A real process on a pseudo-terminal prints what rich needs there, and nothing of the data's sequences."""
    import pty

    with monkeypatch.context() as earlier:
        asyncio.run(fill(shared, earlier))
    ours, theirs = pty.openpty()
    arguments = [sys.executable, "-m", "txnframework", *command.split(), *COMMANDS[command]]
    arguments = [one for one in arguments if "\x00" not in one] if "\x00" in "".join(arguments) else arguments
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    printed = b""
    while True:
        try:
            some = os.read(ours, 65_536)
        except OSError:
            break
        if not some:
            break
        printed += some
    process.wait()
    os.close(ours)
    for sequence in (b"\x1b]0;", b"\x1b]52", b"\x1b[2J", b"\x1b[31m", b"\xc2\x9b", "\u202e".encode(), b"\x00", b"\x07"):
        assert sequence not in printed
    assert printed
