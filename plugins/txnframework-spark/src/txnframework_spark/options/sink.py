"""Options of ``writeStream`` and ``write``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from txnframework.model.names import TopicName
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.parser import (
    STORE_OPTIONS,
    OptionParser,
    StoreOptions,
    option,
    options_of,
    parse_topic,
    read_declared,
)

_OF_TRANSACTIONS: Final = ("txnAppId", "txnVersion", "txnAppReset", "txnAppStateful", "transactionTimeoutMs")
_STREAM: Final = "it is for writeStream only; remove it"


def _topic(options: OptionParser, name: str) -> TopicName | None:
    topic = options.text(name)
    return None if topic is None else parse_topic(name, topic)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """
    Options of ``writeStream`` and ``write``.

    ``topic`` None: each row names its topic in column ``topic``. ``application_id`` None: the query id; a batch job
    then has none.
    """

    stores: StoreOptions
    topic: TopicName | None = option(  # noqa: RUF009
        "topic", _topic, "the topic to write; it takes precedence over the column", "column `topic`"
    )
    transactional: bool = option(
        "transactional", OptionParser.flag, "`false`: rows are visible immediately, at least once", "`true`", value=True
    )
    transaction_timeout_ms: int = option(
        "transactionTimeoutMs",
        OptionParser.number,
        "a micro-batch or job that takes longer is aborted and fails",
        "600000",
        value=600_000,
    )
    bytes_in_flight_max: int = option(
        "maxBytesInFlight",
        OptionParser.number,
        "maximum bytes of the entries that a task has in flight, and of the rows that it gathers for them",
        "16777216",
        value=16 << 20,
    )
    application_id: str | None = option(
        "txnAppId",
        lambda options, name: options.new_name(name, "application id"),
        "the application, independent of checkpoints",
        "the query's id",
    )
    reset: bool = option(
        "txnAppReset",
        OptionParser.flag,
        "continue in cases of `NotJudgeable` or `StateLost`; set it for one start only",
        "`false`",
        value=False,
        only=_STREAM,
    )
    stateful: bool = option(
        "txnAppStateful",
        OptionParser.flag,
        "the plan keeps state: refuse a query without the state of the last committed batch",
        "`false`",
        value=False,
        only=_STREAM,
    )
    version: int | None = option(
        "txnVersion",
        lambda options, name: options.number(name, least=0),
        "a whole number from 0, greater than that of every committed job of the application",
        None,
    )

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
        options = _parser(given)
        for _, one in options_of(cls):
            if one.only and options.text(one.name) is not None:
                raise InvalidOption(one.name, one.only)
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
        options = _parser(given)
        found = cls(stores=options.stores(), **read_declared(cls, options))
        for name in _OF_TRANSACTIONS:
            if not found.transactional and options.text(name) is not None:
                raise InvalidOption(name, "it applies to transactions, which transactional=false disables")
        return found


def _parser(given: Mapping[str, str]) -> OptionParser:
    known = (*STORE_OPTIONS, *(one.name for _, one in options_of(SinkOptions)))
    return OptionParser(given, known, "a txnframework sink")
