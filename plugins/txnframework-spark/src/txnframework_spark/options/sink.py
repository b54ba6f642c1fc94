"""Options of ``writeStream``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from txnframework.model.names import TopicName
from txnframework_spark.options.given import GivenOptions, topic_of
from txnframework_spark.options.stores import STORE_OPTIONS, StoreOptions

_KNOWN: Final = (*STORE_OPTIONS, "topic", "txnAppId", "txnAppReset", "txnAppStateful", "transactionTimeoutMs")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of ``writeStream``.

    ``topic`` None: each row's column ``topic`` names it. ``application_id`` None: the query id. ``reset``: a new query
    may take over an application id of which nothing can be judged. ``stateful``: the plan keeps state in the
    checkpoint, so that a query without that state is refused.
    """

    stores: StoreOptions
    topic: TopicName | None = None
    application_id: str | None = None
    reset: bool = False
    stateful: bool = False
    transaction_timeout_ms: int = 600_000

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Return the options in ``given``; InvalidOption or UnknownOption in one sentence."""
        options = GivenOptions(given, _KNOWN, "a txnframework sink")
        topic = options.text("topic")
        return cls(
            stores=options.stores(),
            topic=None if topic is None else topic_of("topic", topic),
            application_id=options.text("txnAppId"),
            reset=options.flag("txnAppReset", False),
            stateful=options.flag("txnAppStateful", False),
            transaction_timeout_ms=options.number("transactionTimeoutMs") or 600_000,
        )
