"""Plugin hook: transaction buffer ``sidecar``."""

from __future__ import annotations

from txnframework.interfaces import ITransactionBuffer
from txnframework.model.ids import LOG_FAMILY
from txnframework.plugin import Provider, SegmentContext, hookimpl


async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
    """Open the buffer of one topic; it recovers when it is first used."""
    from txnframework_sidecar.buffer import SidecarBuffer

    return SidecarBuffer(context)


@hookimpl
def txnframework_buffers() -> list[Provider[SegmentContext, ITransactionBuffer]]:
    """Provide the buffer ``sidecar``; it is imported here, because listing commands does not need it."""
    from txnframework_sidecar.buffer import SidecarBuffer
    from txnframework_sidecar.options import SidecarOptions

    return [Provider("sidecar", open_buffer, SidecarBuffer, frozenset({LOG_FAMILY}), SidecarOptions)]
