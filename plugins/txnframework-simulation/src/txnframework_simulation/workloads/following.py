"""A consumer that named a segment, and what the segment became: everything comes to it, or it is told why not."""

from __future__ import annotations

from contextlib import suppress

from txnframework.errors import TxnFrameworkError
from txnframework_simulation.workloads.part import Part
from txnframework_simulation.workloads.workload import Subscribed

MESSAGES = 8
SILENT_ROUNDS = 2
PATIENCE_MS = 2_000


async def follow_a_segment(part: Part, one: Subscribed) -> None:
    """Join by naming a segment, split what it has become, send, and see what comes; nobody else is there."""
    recorded = part.recorded
    layout = await recorded.client.layout(one.topic)
    first = part.chance.choice([segment.id for segment in layout.in_order() if not segment.parents])
    consumer = await recorded.consumer(one.topic, one.name, type=one.type, segment=str(layout.name_of(first)))
    wide = [segment for segment in layout.active() if segment.end > segment.start]
    if wide:
        await recorded.split(one.topic, part.chance.choice(wide).id)
    producer = await recorded.producer(one.topic)
    for number in range(MESSAGES):
        await producer.send(recorded.unique(), key=f"followed {number}")
    with suppress(TxnFrameworkError):  # it was told, and the history has it
        await consumer.drain(SILENT_ROUNDS, PATIENCE_MS)
    await consumer.close()
