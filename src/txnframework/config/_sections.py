"""The sections of the configuration file: every value typed, bounded, described and with a default."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from txnframework.plugin import TransactionsSection
from txnframework.urls import redact_url

DEFAULT_STORE_URL = "sqlite:///txnframework-data/txn.db"
"""The embedded default, a plain string: the core does not know the plugin that opens it."""


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
    """Where transactions, layouts and cursors are recorded."""

    url: Annotated[
        str, Meta(min_length=1, description="The metadata store; the scheme names the plugin that opens it.")
    ] = DEFAULT_STORE_URL
    options: Annotated[dict[str, object], Meta(description="Options of that plugin.")] = {}


class LedgerSection(_StoreSection, frozen=True, kw_only=True):
    """Where messages are kept."""

    url: Annotated[str, Meta(description="The ledger store. Empty: the same place as the metadata store.")] = ""
    options: Annotated[dict[str, object], Meta(description="Options of the plugin that opens it.")] = {}


class DomainSection(Section, frozen=True, kw_only=True):
    """Which plugins serve a topic domain; all three must belong to one family."""

    coordinator: Annotated[str, Meta(min_length=1, description="Decides the transactions.")]
    buffer: Annotated[str, Meta(min_length=1, description="Keeps what they write and knows what may be read.")]
    pending_ack: Annotated[str, Meta(min_length=1, description="Keeps what they acknowledge.")]


class SegmentDomain(DomainSection, frozen=True, kw_only=True):
    """Which plugins serve ``segment://`` and ``topic://``; all three must belong to one family."""

    coordinator: Annotated[str, Meta(min_length=1, description="Decides the transactions.")] = "metadata"
    buffer: Annotated[str, Meta(min_length=1, description="Keeps what they write and knows what may be read.")] = (
        "metadata"
    )
    pending_ack: Annotated[str, Meta(min_length=1, description="Keeps what they acknowledge.")] = "metadata"


class PersistentDomain(DomainSection, frozen=True, kw_only=True):
    """Which plugins serve ``persistent://``; all three must belong to one family."""

    coordinator: Annotated[str, Meta(min_length=1, description="Decides the transactions.")] = "log"
    buffer: Annotated[str, Meta(min_length=1, description="Keeps what they write and knows what may be read.")] = (
        "marker"
    )
    pending_ack: Annotated[str, Meta(min_length=1, description="Keeps what they acknowledge.")] = "log"


class DomainsSection(Section, frozen=True, kw_only=True):
    """The domains; ``topic://`` is made of segments and follows ``segment``."""

    segment: SegmentDomain = SegmentDomain()
    persistent: PersistentDomain = PersistentDomain()


class DomainOverride(Section, frozen=True, kw_only=True):
    """What one namespace does differently in a domain; what is left out stays as in ``domains``."""

    coordinator: Annotated[str, Meta(min_length=1)] | None = None
    buffer: Annotated[str, Meta(min_length=1)] | None = None
    pending_ack: Annotated[str, Meta(min_length=1)] | None = None


class RetentionOverride(Section, frozen=True, kw_only=True):
    """What one namespace keeps for longer or shorter; what is left out stays as in ``retention``."""

    time_ms: Annotated[int, Meta(ge=-1)] | None = None
    bytes: Annotated[int, Meta(ge=-1)] | None = None
    backlog_time_ms: Annotated[int, Meta(ge=-1)] | None = None


class NamespaceSection(Section, frozen=True, kw_only=True):
    """One namespace's overrides."""

    segment: DomainOverride = DomainOverride()
    persistent: DomainOverride = DomainOverride()
    retention: RetentionOverride = RetentionOverride()


class RetentionSection(Section, frozen=True, kw_only=True):
    """What is kept of messages that every subscription has acknowledged; by default everything. Whole ledgers go."""

    time_ms: Annotated[
        int, Meta(ge=-1, description="How long acknowledged messages are kept; 0: not at all, -1: for ever.")
    ] = -1
    bytes: Annotated[
        int,
        Meta(
            ge=-1,
            description="How many bytes of acknowledged messages each segment keeps at least; 0: none, -1: all. What"
            " exceeds one of the two goes.",
        ),
    ] = -1
    backlog_time_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description="How long messages are kept that a subscription has not acknowledged; after that they are lost"
            " to it. The default: for ever.",
        ),
    ] = -1
    ledger_age_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How old the first message of an open ledger becomes before the ledger is closed, where one of"
            " the times is set: only closed ledgers go.",
        ),
    ] = 3_600_000
    interval_ms: Annotated[
        int, Meta(ge=1, description="The time between two rounds of trimming, and of finishing deletions.")
    ] = 30_000
    segments_max: Annotated[int, Meta(ge=1, description="How many segments one round looks at.")] = 100


class ClientSection(Section, frozen=True, kw_only=True):
    """Bounds of producers and consumers."""

    entry_messages_max: Annotated[int, Meta(ge=1, description="How many messages one entry holds at most.")] = 1_000
    entry_bytes_max: Annotated[
        int, Meta(ge=1, description="How many bytes one entry holds at most; a single larger message stands alone.")
    ] = 1_048_576
    message_bytes_max: Annotated[int, Meta(ge=1, description="The largest message that is accepted.")] = 5_242_880
    linger_ms: Annotated[
        int, Meta(ge=0, description="How long a send waits for others to share its entry; 0: not at all.")
    ] = 0
    sends_in_flight_max: Annotated[
        int, Meta(ge=1, description="How many sends one producer has in flight; further ones wait.")
    ] = 1_000
    receive_messages_max: Annotated[
        int, Meta(ge=1, description="How many messages wait in a consumer before it asks for no more.")
    ] = 1_000
    retries_max: Annotated[
        int, Meta(ge=0, description="How often an operation is tried again after Unavailable or OutcomeUnknown.")
    ] = 5
    retry_delay_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="The longest wait before the first retry; it doubles with each further one. Chance shortens"
            " every wait, by up to a half.",
        ),
    ] = 100
    retry_delay_ms_max: Annotated[int, Meta(ge=1, description="The longest wait between two retries.")] = 5_000
    close_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long closing the client waits for calls that were begun, cancelled ones too, and how long"
            " again for ended transactions to take effect; what is left then is left as by a crash.",
        ),
    ] = 10_000


class SubscriptionsSection(Section, frozen=True, kw_only=True):
    """Bounds of subscriptions and their cursors."""

    read_entries_max: Annotated[
        int, Meta(ge=1, description="How many entries are read ahead for one subscription.")
    ] = 100
    read_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many bytes are read ahead for one subscription, on each segment, and by a reader; an entry"
            " that is larger is read alone.",
        ),
    ] = 4_194_304
    unacknowledged_messages_max: Annotated[
        int, Meta(ge=1, description="How many delivered messages of one consumer may wait for their acknowledgment.")
    ] = 10_000
    unacknowledged_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many bytes of delivered messages of one consumer may wait for their acknowledgment, on"
            " each segment; a message that is larger is delivered alone.",
        ),
    ] = 268_435_456
    deleted_ranges_max: Annotated[
        int, Meta(ge=1, description="How many ranges a cursor records behind its first unacknowledged message.")
    ] = 10_000
    cursor_delay_ms: Annotated[
        int, Meta(ge=0, description="How long plain acknowledgments are gathered before the cursor is written.")
    ] = 0
    redelivery_delay_ms: Annotated[
        int, Meta(ge=0, description="How long a negatively acknowledged message waits for its redelivery.")
    ] = 1_000
    redelivery_counts_max: Annotated[
        int,
        Meta(ge=0, description="Of how many messages a process remembers the redeliveries while it has no consumer."),
    ] = 10_000


_OPTION_TABLES = ("coordinators", "buffers", "pending_acks", "dispatchers")


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
            description="Other plugins for the topics of one namespace.",
            extra={"sample": '[namespaces."public/default".persistent]\nbuffer = "sidecar"'},
        ),
    ] = {}
    transactions: TransactionsSection = TransactionsSection()
    client: ClientSection = ClientSection()
    subscriptions: SubscriptionsSection = SubscriptionsSection()
    retention: RetentionSection = RetentionSection()
    coordinators: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of coordinators, one table for each name.")
    ] = {}
    buffers: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of buffers, one table for each name.")
    ] = {}
    pending_acks: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of pending-ack stores, one table for each name.")
    ] = {}
    dispatchers: Annotated[
        dict[str, dict[str, object]], Meta(description="Options of dispatchers, one table for each name.")
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

        :raises KeyError: there is no such domain.
        """
        name = {"segment": "segment", "topic": "segment", "persistent": "persistent"}[domain]
        base: DomainSection = getattr(self.domains, name)
        override: DomainOverride = getattr(self.namespaces.get(namespace, NamespaceSection()), name)
        return DomainSection(
            coordinator=override.coordinator or base.coordinator,
            buffer=override.buffer or base.buffer,
            pending_ack=override.pending_ack or base.pending_ack,
        )

    def retention_of(self, namespace: str) -> RetentionSection:
        """Return the retention of the topics in ``namespace``."""
        override = self.namespaces.get(namespace, NamespaceSection()).retention
        given = {key: value for key, value in msgspec.structs.asdict(override).items() if value is not None}
        return msgspec.structs.replace(self.retention, **given)
