"""The options of the observer, ``[observers.opentelemetry]``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ObserverOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is traced and recorded."""

    traces: Annotated[bool, Meta(description="Whether operations become spans.")] = True
    metrics: Annotated[bool, Meta(description="Whether numbers are recorded.")] = True
    propagate: Annotated[
        bool, Meta(description="Whether sent messages carry the context of their span in their headers.")
    ] = True
    links_max: Annotated[
        int, Meta(ge=0, description="Maximum number of messages to whose senders a receipt is linked.")
    ] = 100
    transactions_max: Annotated[
        int, Meta(ge=0, description="Number of transactions to whose begins later operations are linked.")
    ] = 10_000
