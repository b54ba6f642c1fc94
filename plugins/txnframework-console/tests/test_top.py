"""``txnframework top``: what keys change, what is drawn, and the document for scripts."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from console_world import served
from rich.console import Console as Terminal
from rich.console import RenderableType

from txnframework.cli import main
from txnframework.cli.background_client import BackgroundClient
from txnframework_console.terminal.keys import keys_of
from txnframework_console.terminal.loop import Screen, read_once
from txnframework_console.terminal.state import ScreenState, after_key


def pressed(state: ScreenState, *keys: str) -> ScreenState:
    for key in keys:
        state = after_key(state, key)
    return state


def text_of(drawing: RenderableType) -> str:
    written = io.StringIO()
    Terminal(file=written, width=120).print(drawing)
    return " ".join(written.getvalue().split())


def test_keys() -> None:
    """Views, orders, pages and the filter; letters are text while the filter is typed."""
    start = ScreenState()
    assert pressed(start, "2").view == "transactions"
    assert pressed(start, "tab", "tab", "tab") == start
    assert pressed(start, "s").sort == "undecided"
    assert pressed(start, "n", "n", "p").page == 2
    typed = pressed(start, "n", "/", "q", "1", "x", "backspace")
    assert (typed.text, typed.typing, typed.page, typed.view) == ("q1", True, 1, "topics")
    assert pressed(typed, "enter", "3").text == "q1"
    assert pressed(typed, "escape").text == ""
    assert pressed(start, "q").is_over
    there = after_key(pressed(start, "2"), "n", "an id")
    assert there.query(5).after == "an id"  # type: ignore[union-attr]
    assert pressed(there, "p").query(5).after == ""  # type: ignore[union-attr]


def test_keys_of_a_terminal() -> None:
    """Arrows, control characters, and text that arrives at once."""
    assert keys_of(b"\x1b[A") == ["up"]
    assert keys_of(b"\x1b") == ["escape"]
    assert keys_of(b"\x1b[99~") == []
    assert keys_of("aé\r\x01".encode()) == ["a", "é", "enter"]


async def test_a_screen() -> None:
    """It shows what is read, follows keys at once, names an outage, recovers, and ends with q."""
    async with served() as world:
        await world.client.create_topic("orders")
        txn = world.client.transaction(principal="checkout")
        await txn.begin()
        drawings: list[RenderableType] = []

        class Same(BackgroundClient):
            def client(self) -> object:  # type: ignore[override]
                return world.looking

        connection = Same(lambda: None, world.environment)  # type: ignore[arg-type, return-value]
        screen = Screen(connection, world.environment, drawings.append, lambda: 10)
        running = asyncio.ensure_future(screen.run())
        await world.environment.advance(10)
        assert "orders 1 0" in text_of(drawings[-1])
        screen.keys.put_nowait("2")
        await world.environment.advance(10)
        assert f"{txn.id} open" in text_of(drawings[-1])
        assert "checkout" in text_of(drawings[-1])
        world.cut()
        await world.environment.advance(5_000)
        assert "The stores do not answer" in text_of(drawings[-1])
        world.restore()
        await world.environment.advance(5_000)
        assert "The stores do not answer" not in text_of(drawings[-1])
        screen.keys.put_nowait("q")
        await running


async def test_one_reading() -> None:
    """The document has the largest lags first, and each open transaction with its owner."""
    async with served() as world:
        for name in ("a", "b"):
            await world.client.create_topic(name)
            await world.client.subscribe(name, "s", start="earliest")
        async with await world.client.producer("b") as producer:
            await producer.send(b"1")
        txn = world.client.transaction(principal="checkout")
        await txn.begin()
        found = json.loads(json.dumps(await read_once(world.looking, world.environment, 1)))
        assert found["format"] == 1
        assert [(one["topic"][-1], one["lag"]) for one in found["subscriptions"]] == [("b", 1)]
        (one,) = found["transactions"]
        assert (one["transaction"], one["principal"], one["owner_lives"]) == (str(txn.id), "checkout", True)


def test_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without a terminal ``top`` needs --once; an address that is none is refused in one sentence."""
    config = tmp_path / "t.toml"
    config.write_text('[metadata]\nurl = "memory://top"\n[ledger]\nurl = "memory://top"\n')
    chosen = ("--config", str(config))
    assert main(["top", *chosen]) == 2
    assert capsys.readouterr().err == "Error: standard output is no terminal: add --once\n"
    assert main(["console", "--listen", "8470", *chosen]) == 2
    assert capsys.readouterr().err == "Error: --listen 8470: write HOST:PORT, such as 127.0.0.1:8470\n"
    assert main(["top", "--once", "--output", "json", *chosen]) == 0
    assert json.loads(capsys.readouterr().out)["topics"] == []
