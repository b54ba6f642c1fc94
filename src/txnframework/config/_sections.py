"""The sections of the configuration file: every value typed, bounded, described and with a default."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from txnframework.plugin import TransactionsSection
from txnframework.urls import redact_url

DEFAULT_STORE_URL = "sqlite:///txnframework-data/txn.db"
"""
The URL of the embedded default store.

It is a plain string, because the core does not know the plugin that opens it.
"""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration."""


class _StoreSection(Section, frozen=True, kw_only=True):
    url: str = ""
    options: dict[str, object] = {}

    def __repr__(self) -> str:
        """Return the section without passwords, because configurations end up in logs."""
        return f"{type(self).__name__}(url={redact_url(self.url)!r}, options={sorted(self.options)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what ``repr`` shows, because rich would print the fields themselves."""
        return [("url", redact_url(self.url)), ("options", sorted(self.options))]


class MetadataSection(_StoreSection, frozen=True, kw_only=True):
    """The store of transactions, topic layouts and cursors."""

    url: Annotated[str, Meta(description="URL of the metadata store; its scheme is the name of the plugin.")] = (
        DEFAULT_STORE_URL
    )
    options: Annotated[dict[str, object], Meta(description="Options of the plugin.")] = {}


class LedgerSection(_StoreSection, frozen=True, kw_only=True):
    """The store of messages."""

    url: Annotated[str, Meta(description="URL of the ledger store. Empty: the URL of the metadata store.")] = ""
    options: Annotated[dict[str, object], Meta(description="Options of the plugin.")] = {}


Coordinator = Annotated[str, Meta(min_length=1, description="Begins and ends transactions.")]
Buffer = Annotated[
    str,
    Meta(min_length=1, description="Stores transactional messages, and decides which messages are readable."),
]
PendingAck = Annotated[str, Meta(min_length=1, description="Stores transactional acknowledgments.")]


class DomainSection(Section, frozen=True, kw_only=True):
    """The plugins of a topic domain; all three must belong to one family."""

    coordinator: Coordinator
    buffer: Buffer
    pending_ack: PendingAck


class SegmentDomain(DomainSection, frozen=True, kw_only=True):
    """The plugins of ``segment://`` and ``topic://``; all three must belong to one family."""

    coordinator: Coordinator = "metadata"
    buffer: Buffer = "metadata"
    pending_ack: PendingAck = "metadata"


class PersistentDomain(DomainSection, frozen=True, kw_only=True):
    """The plugins of ``persistent://``; all three must belong to one family."""

    coordinator: Coordinator = "log"
    buffer: Buffer = "marker"
    pending_ack: PendingAck = "log"


class DomainsSection(Section, frozen=True, kw_only=True):
    """The plugins of each domain; ``topic://`` uses those of ``segment``."""

    segment: SegmentDomain = SegmentDomain()
    persistent: PersistentDomain = PersistentDomain()


class DomainOverride(Section, frozen=True, kw_only=True):
    """Overrides of ``domains`` for one namespace; None: not overridden."""

    coordinator: Annotated[str, Meta(min_length=1)] | None = None
    buffer: Annotated[str, Meta(min_length=1)] | None = None
    pending_ack: Annotated[str, Meta(min_length=1)] | None = None


class RetentionOverride(Section, frozen=True, kw_only=True):
    """Overrides of ``retention`` for one namespace; None: not overridden."""

    time_ms: Annotated[int, Meta(ge=-1)] | None = None
    bytes: Annotated[int, Meta(ge=-1)] | None = None
    backlog_time_ms: Annotated[int, Meta(ge=-1)] | None = None


class BacklogQuotaOverride(Section, frozen=True, kw_only=True):
    """Overrides of ``backlog_quota`` for one namespace; None: not overridden."""

    messages: Annotated[int, Meta(ge=-1)] | None = None
    bytes: Annotated[int, Meta(ge=-1)] | None = None


class NamespaceSection(Section, frozen=True, kw_only=True):
    """Overrides for one namespace."""

    segment: DomainOverride = DomainOverride()
    persistent: DomainOverride = DomainOverride()
    retention: RetentionOverride = RetentionOverride()
    backlog_quota: BacklogQuotaOverride = BacklogQuotaOverride()


class RetentionSection(Section, frozen=True, kw_only=True):
    """How long messages are kept; by default, without limit. Only whole ledgers are deleted."""

    time_ms: Annotated[
        int, Meta(ge=-1, description="How long acknowledged messages are kept; 0: not kept, -1: without limit.")
    ] = -1
    bytes: Annotated[
        int,
        Meta(
            ge=-1,
            description="How many bytes of acknowledged messages each segment keeps; 0: none, -1: all. Messages that"
            " exceed time_ms or bytes are deleted.",
        ),
    ] = -1
    backlog_time_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description="How long messages that a subscription has not acknowledged are kept. Later, the subscription"
            " skips them. -1: without limit.",
        ),
    ] = -1
    ledger_age_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="The age of the first message at which an open ledger is closed, if time_ms or backlog_time_ms"
            " is set. Only closed ledgers are deleted.",
        ),
    ] = 3_600_000
    interval_ms: Annotated[
        int, Meta(ge=1, description="Time between two rounds of trimming, which also finish interrupted deletions.")
    ] = 30_000
    segments_max: Annotated[int, Meta(ge=1, description="Maximum number of segments that one round examines.")] = 100


class BacklogQuotaSection(Section, frozen=True, kw_only=True):
    """How far a subscription of a topic may be behind before producers of the topic are refused."""

    messages: Annotated[
        int, Meta(ge=-1, description="The number of stored messages that it has not acknowledged; -1: without limit.")
    ] = -1
    bytes: Annotated[
        int, Meta(ge=-1, description="Their size, by the average size of the topic's messages; -1: without limit.")
    ] = -1
    interval_ms: Annotated[
        int, Meta(ge=1, description="How long a process that sends relies on one measurement of the backlogs.")
    ] = 5_000


class ClientSection(Section, frozen=True, kw_only=True):
    """Name of the program, limits of producers and consumers, and retries."""

    name: Annotated[
        str,
        Meta(
            max_length=64,
            pattern=r"^[^\s@/\x00-\x1f\x7f-\x9f]*\Z",
            description="Name of the program in leases and as the owner of transactions, without white space, @ and /."
            " Empty: the name of the program's file.",
        ),
    ] = ""
    entry_messages_max: Annotated[int, Meta(ge=1, description="Maximum number of messages in one entry.")] = 1_000
    entry_bytes_max: Annotated[
        int, Meta(ge=1, description="Maximum size of one entry; a larger message has an entry of its own.")
    ] = 1_048_576
    message_bytes_max: Annotated[int, Meta(ge=1, description="Maximum size of a message.")] = 5_242_880
    linger_ms: Annotated[
        int, Meta(ge=0, description="How long a send waits for other messages to share its entry; 0: it does not wait.")
    ] = 0
    sends_in_flight_max: Annotated[
        int, Meta(ge=1, description="Maximum number of sends in flight of one producer; further sends wait.")
    ] = 1_000
    receive_messages_max: Annotated[
        int,
        Meta(ge=1, description="Number of messages in a consumer's queue at which it requests no more."),
    ] = 1_000
    retries_max: Annotated[
        int, Meta(ge=0, description="Maximum number of retries of an operation after Unavailable or OutcomeUnknown.")
    ] = 5
    retry_delay_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum delay before the first retry; it doubles with each further retry. Each delay is"
            " shortened at random by up to a half.",
        ),
    ] = 100
    retry_delay_ms_max: Annotated[int, Meta(ge=1, description="Maximum delay between two retries.")] = 5_000
    close_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long closing the client waits for running calls, also cancelled ones, and then, again, for"
            " ended transactions to take effect. Unfinished work is left as after a crash.",
        ),
    ] = 10_000


class SubscriptionsSection(Section, frozen=True, kw_only=True):
    """Limits of subscriptions and their cursors."""

    read_entries_max: Annotated[
        int, Meta(ge=1, description="Maximum number of entries that are prefetched for one subscription.")
    ] = 100
    read_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of bytes that are prefetched for one subscription on each segment, and by a"
            " reader. A larger entry is read alone.",
        ),
    ] = 4_194_304
    unacknowledged_messages_max: Annotated[
        int, Meta(ge=1, description="Maximum number of delivered but unacknowledged messages of one consumer.")
    ] = 10_000
    unacknowledged_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of bytes of delivered but unacknowledged messages of one consumer, on each"
            " segment; a larger message is delivered alone.",
        ),
    ] = 268_435_456
    delayed_messages_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of messages that one subscription holds back on each segment because they are"
            " not due; then nothing behind them is delivered until one is due.",
        ),
    ] = 10_000
    delayed_bytes_max: Annotated[
        int, Meta(ge=1, description="Maximum number of bytes of these messages; a larger message is held back alone.")
    ] = 67_108_864
    deleted_ranges_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of acknowledged ranges that a cursor records after its first"
            " unacknowledged message.",
        ),
    ] = 10_000
    cursor_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long plain acknowledgments are collected before the cursor is written.",
        ),
    ] = 0
    balance: Annotated[
        bool,
        Meta(
            description="Whether the consumers of several processes divide a topic's segments among them, if the"
            " subscription type allows several consumers."
        ),
    ] = True
    handover_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a consumer may take to acknowledge the received messages of a segment that another"
            " process is to dispatch. The others are redelivered there.",
        ),
    ] = 10_000
    redelivery_delay_ms: Annotated[
        int, Meta(ge=0, description="Delay before a negatively acknowledged message is redelivered.")
    ] = 1_000
    redelivery_counts_max: Annotated[
        int,
        Meta(ge=0, description="Number of messages whose redelivery counts are kept while there is no consumer."),
    ] = 10_000


_OPTION_TABLES = ("coordinators", "buffers", "pending_acks", "dispatchers", "observers")


class Config(Section, frozen=True, kw_only=True):
    """
    The whole configuration, as ``load_config`` returns it.

    The tables of plugin options are still untyped here; the plugin registry types them with the plugin's own
    description of its options.
    """

    metadata: MetadataSection = MetadataSection()
    ledger: LedgerSection = LedgerSection()
    domains: DomainsSection = DomainsSection()
    namespaces: Annotated[
        dict[str, NamespaceSection],
        Meta(
            description="Overrides of plugins, retention and backlog quotas for one namespace.",
            extra={"sample": '[namespaces."public/default".persistent]\nbuffer = "sidecar"'},
        ),
    ] = {}
    transactions: TransactionsSection = TransactionsSection()
    client: ClientSection = ClientSection()
    subscriptions: SubscriptionsSection = SubscriptionsSection()
    retention: RetentionSection = RetentionSection()
    backlog_quota: BacklogQuotaSection = BacklogQuotaSection()
    coordinators: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of coordinators, one table for each plugin.")
    ] = {}
    buffers: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of buffers, one table for each plugin.")
    ] = {}
    pending_acks: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of pending-ack stores, one table for each plugin.")
    ] = {}
    dispatchers: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of dispatchers, one table for each plugin.")
    ] = {}
    observers: Annotated[
        dict[str, dict[str, object]],
        Meta(description="Observers, such as tracing: a table enables one, and has its options."),
    ] = {}

    def __repr__(self) -> str:
        """Return the configuration without the values of plugins' options, because some are secret."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return each section; of the tables of options only their keys."""
        found: list[tuple[str, Any]] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            shown = {key: sorted(table) for key, table in value.items()} if name in _OPTION_TABLES else value
            found.append((name, shown))
        return found

    def domain(self, namespace: str, domain: str) -> DomainSection:
        """
        Return the plugins that serve ``domain`` (``segment``, ``topic`` or ``persistent``) in ``namespace``.

        :raises KeyError: the domain does not exist.
        """
        name = {"segment": "segment", "topic": "segment", "persistent": "persistent"}[domain]
        base: DomainSection = getattr(self.domains, name)
        override: DomainOverride = getattr(self.namespaces.get(namespace, NamespaceSection()), name)
        return DomainSection(
            coordinator=override.coordinator or base.coordinator,
            buffer=override.buffer or base.buffer,
            pending_ack=override.pending_ack or base.pending_ack,
        )

    def backlog_quota_of(self, namespace: str) -> BacklogQuotaSection:
        """Return the backlog quota of the topics in ``namespace``."""
        override = self.namespaces.get(namespace, NamespaceSection()).backlog_quota
        given = {key: value for key, value in msgspec.structs.asdict(override).items() if value is not None}
        return msgspec.structs.replace(self.backlog_quota, **given)

    def retention_of(self, namespace: str) -> RetentionSection:
        """Return the retention of the topics in ``namespace``."""
        override = self.namespaces.get(namespace, NamespaceSection()).retention
        given = {key: value for key, value in msgspec.structs.asdict(override).items() if value is not None}
        return msgspec.structs.replace(self.retention, **given)
