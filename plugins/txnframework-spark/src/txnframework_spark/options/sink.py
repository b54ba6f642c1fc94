"""Options of ``writeStream`` and ``write``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from txnframework.model.names import TopicName
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.parser import STORE_OPTIONS, OptionParser, StoreOptions, parse_topic

_KNOWN: Final = (
    *STORE_OPTIONS,
    "topic",
    "transactional",
    "txnAppId",
    "txnVersion",
    "txnAppReset",
    "txnAppStateful",
    "transactionTimeoutMs",
    "maxBytesInFlight",
)
_OF_TRANSACTIONS: Final = ("txnAppId", "txnVersion", "txnAppReset", "txnAppStateful", "transactionTimeoutMs")
_TIMEOUT_MS: Final = 600_000
_BYTES_IN_FLIGHT_MAX: Final = 16 << 20
_OF_STREAMS: Final = ("txnAppReset", "txnAppStateful")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of ``writeStream`` and ``write``.

    ``topic`` None: each row names its topic in column ``topic``. ``transactional`` False: rows are visible when they
    are written, at least once. ``application_id`` None: the query id; a batch job then has none. ``version``: the
    version of a batch job, counted per application. ``reset``: a new query may take over an application id although its
    batches cannot be judged. ``stateful``: the plan keeps state in the checkpoint, so a query without that state is
    refused. ``bytes_in_flight_max``: limit for one task's unconfirmed entries, and for the rows that it gathers for
    them.
    """

    stores: StoreOptions
    topic: TopicName | None = None
    transactional: bool = True
    application_id: str | None = None
    version: int | None = None
    reset: bool = False
    stateful: bool = False
    transaction_timeout_ms: int = _TIMEOUT_MS
    bytes_in_flight_max: int = _BYTES_IN_FLIGHT_MAX

    @classmethod
    def of_stream(cls, given: Mapping[str, str]) -> SinkOptions:
        """Return the options of a ``writeStream``, or raise InvalidOption or UnknownOption."""
        found = cls._parse(given)
        if found.version is not None:
            raise InvalidOption(
                "txnVersion", "it is for write only, because Spark counts the batches of a stream; remove it"
            )
        return found

    @classmethod
    def of_job(cls, given: Mapping[str, str]) -> SinkOptions:
        """Return the options of a ``write``, or raise InvalidOption or UnknownOption."""
        options = OptionParser(given, _KNOWN, "a txnframework sink")
        for name in _OF_STREAMS:
            if options.text(name) is not None:
                raise InvalidOption(name, "it is for writeStream only; remove it")
        found = cls._parse(given)
        if found.version is not None and found.application_id is None:
            raise InvalidOption("txnVersion", "it requires the option txnAppId, which names the application")
        if found.application_id is not None and found.version is None:
            raise InvalidOption(
                "txnAppId",
                "in a batch job it requires the option txnVersion, a number that increases from job to job",
            )
        return found

    @classmethod
    def _parse(cls, given: Mapping[str, str]) -> SinkOptions:
        options = OptionParser(given, _KNOWN, "a txnframework sink")
        topic = options.text("topic")
        transactional = options.flag("transactional", True)
        for name in _OF_TRANSACTIONS:
            if not transactional and options.text(name) is not None:
                raise InvalidOption(name, "it applies to transactions, which transactional=false disables")
        return cls(
            stores=options.stores(),
            topic=None if topic is None else parse_topic("topic", topic),
            transactional=transactional,
            application_id=options.new_name("txnAppId", "application id"),
            version=options.number("txnVersion", least=0),
            reset=options.flag("txnAppReset", False),
            stateful=options.flag("txnAppStateful", False),
            transaction_timeout_ms=options.number("transactionTimeoutMs") or _TIMEOUT_MS,
            bytes_in_flight_max=options.number("maxBytesInFlight") or _BYTES_IN_FLIGHT_MAX,
        )
