"""The end of a run: nobody is there any more, everything is swept, and one client looks at what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import txnframework
from txnframework.client import Client
from txnframework.errors import TxnFrameworkError
from txnframework_simulation.history import Appending, Begun, Commit, History, Kind, Recorder
from txnframework_simulation.torture.assignment import config
from txnframework_simulation.torture.member import Urls
from txnframework_simulation.workloads import RecordedClient, Workload
from txnframework_simulation.workloads.draining import drain_outcome, drain_subscription, drain_topic

SETTLING_SECONDS_MAX = 90.0
"""How long it may take until what was left open is aborted, and what dead processes held is free."""
_AGAIN_SECONDS = 0.5


async def prepare(urls: Urls, workload: Workload[Any], history: Path) -> None:
    """Make topics and subscriptions."""
    appending = Appending(history, {"process": "prepare"})
    async with txnframework.open(config(urls.metadata, urls.ledger)) as client:
        await workload.prepare(RecordedClient(client, Recorder(time.monotonic_ns, appending.keep), "prepare"))
    appending.close()


async def settle_and_drain(urls: Urls, workload: Workload[Any], asked: Iterable[str], history: Path) -> str:
    """
    Wait until everything has settled, then record what is there; return why it did not settle, if it did not.

    Whoever is left of a transaction's process has no effect on it any more: it times out, or is aborted sooner.
    """
    appending = Appending(history, {"process": "drain"})
    async with txnframework.open(config(urls.metadata, urls.ledger)) as client:
        recorded = RecordedClient(client, Recorder(time.monotonic_ns, appending.keep), "drain")
        left = await _settled(client, workload)
        for txn in asked:
            await drain_outcome(recorded, txn)
        for topic in workload.topics:
            await drain_topic(recorded, topic)
        # Each waits until nothing comes any more: together they take as long as one.
        await asyncio.gather(*(drain_subscription(recorded, one) for one in workload.subscriptions))
    appending.close()
    return left


async def _settled(client: Client, workload: Workload[Any]) -> str:
    deadline = time.monotonic() + SETTLING_SECONDS_MAX
    left = ""
    while time.monotonic() < deadline:
        left = await _left(client, workload)
        if not left:
            return ""
        await asyncio.sleep(_AGAIN_SECONDS)
    return left


async def _left(client: Client, workload: Workload[Any]) -> str:
    """Return what is still to be waited for."""
    try:
        await client.upkeep()
        hanging = await client.find_hanging(0)
        if hanging:
            return f"transaction {hanging[0].transaction.txn_id} is still open or has not taken effect everywhere"
        for one in workload.subscriptions:
            await (await client.consumer(one.topic, one.name, type=one.type)).close()
    except TxnFrameworkError as error:
        return str(error)
    return ""


def to_ask(history: History) -> list[str]:
    """
    Return the transactions whose outcome is to be asked for: those that nobody knows the end of.

    What became of the others was told to who ended them, and is held to it by what is there.
    """
    begun: dict[str, None] = {}
    told = set()
    for call in history.calls():
        if isinstance(call.reply, Begun):
            begun[call.reply.txn] = None
        elif isinstance(call.operation, Commit) and call.kind is Kind.OK:
            told.add(call.operation.txn)
    return [txn for txn in begun if txn not in told]
