"""Count the way of a message through the packages: ``python bench/message_path.py``.

For one ``send`` in a transaction, its ``commit`` and the ``receive`` that follows, over the metadata family on the
memory store, it prints the calls of Python functions of ``txnframework`` packages, the distinct modules that these are
in, and how often a call is in another module than the one before it. Nothing here depends on time or on the machine.
Two commits can be compared by the numbers alone.

What belongs to an operation: every call in the process from the moment it begins to the moment it returns, whichever
task makes it. Before ``send`` and ``commit`` the process is at rest and its clock stands still. So a background task is
counted where the operation wakes it, and as far as it comes before the operation returns. ``receive`` begins when
``commit`` has just returned and nothing else has run since: reading the segment and dispatching the message are counted
with it. ``own`` are the calls that the operation makes itself, in its own task or in those that it starts. Tasks that
were there before make the others.

A function is counted once a call. A coroutine or generator is not counted again when it is resumed, and comprehensions
belong to the function that they are in. The operation was done a few times before it is counted: what is opened once
and kept is not on the way of every message.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import itertools
import json
import sys
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import TypeVar

from rich.console import Console
from rich.table import Table

import txnframework
from txnframework.testing.clock import VirtualEnvironment, run_ready

T = TypeVar("T")

PACKAGE = "txnframework"
INSIDE_OF_A_FUNCTION = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
WARM_UP = 3
"""How often each operation is done before it is counted."""

_counted: ContextVar[str] = ContextVar("counted", default="")
"""The operation inside which this runs, also in tasks that it started."""


@dataclass
class Way:
    """The calls of one operation, in their order: the module of each, its function, and whether it is its own."""

    operation: str
    calls: list[tuple[str, str, bool]] = field(default_factory=list)

    @property
    def modules(self) -> list[str]:
        return [module for module, _, _ in self.calls]

    @property
    def changes(self) -> int:
        modules = self.modules
        return sum(one != before for before, one in itertools.pairwise(modules))

    def figures(self) -> dict[str, int]:
        own = sum(is_own for _, _, is_own in self.calls)
        return {"calls": len(self.calls), "own": own, "modules": len({*self.modules}), "changes": self.changes}

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call; ``sys.setprofile`` calls this, also where a coroutine or generator is resumed."""
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith(PACKAGE) or frame.f_lasti != _first_step(frame.f_code):
            return
        if frame.f_code.co_name not in INSIDE_OF_A_FUNCTION:
            self.calls.append((module, frame.f_code.co_qualname, _counted.get() == self.operation))

    async def of(self, operation: Awaitable[T]) -> T:
        """Do the operation in this task, and count it from its first step to its last; no other step is in between."""
        before = _counted.set(self.operation)
        sys.setprofile(self.note)
        try:
            return await operation
        finally:
            sys.setprofile(None)
            _counted.reset(before)


@cache
def _first_step(code: CodeType) -> int:
    """Return where a function begins: where its frame stands when it is called, and never when it is resumed."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


async def ways() -> list[Way]:
    """Send, commit and receive one message, the last time counted."""
    stores: dict[str, object] = {"metadata": {"url": "memory://way"}, "ledger": {"url": "memory://way"}}
    async with txnframework.open(stores, environment=VirtualEnvironment()) as client:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        producer = await client.producer("orders")
        for _ in range(WARM_UP + 1):
            sending, committing, receiving = Way("send(txn)"), Way("commit"), Way("receive")
            txn = client.transaction()
            await txn.begin()
            await run_ready()
            await sending.of(producer.send(b"three apples", key=b"apples", txn=txn))
            await run_ready()
            await committing.of(txn.commit())
            message = await receiving.of(consumer.receive())
            await consumer.ack(message)
            await run_ready()
    return [sending, committing, receiving]


def main() -> None:
    """Print what was counted: a table, JSON, or (``--calls``) every module and function of each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", choices=["table", "json"], default="table")
    parser.add_argument("--calls", action="store_true", help="show each call, in order")
    arguments = parser.parse_args()
    found = asyncio.run(ways())
    if arguments.calls:
        for way in found:
            print(f"\n{way.operation}")
            for module, function, is_own in way.calls:
                print(f"  {'' if is_own else '* '}{module}: {function}")
    if arguments.output == "json":
        print(json.dumps({way.operation: way.figures() for way in found}, indent=2))
        return
    table = Table("operation", *(found[0].figures()))
    for way in found:
        table.add_row(way.operation, *map(str, way.figures().values()))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
