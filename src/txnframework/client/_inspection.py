"""Client operations that describe topics, subscriptions, transactions and leases for people who operate a system."""

from __future__ import annotations

from txnframework.broker import FamilyStatus, HeldLease, SubscriptionPosition, TopicDescription
from txnframework.client._arguments import encoded, whole_number
from txnframework.client._base import ClientOperations, Name, check_subscription, naming_deletion
from txnframework.client._transaction_admin import parse_txn_id
from txnframework.errors import InvalidInput, excerpt
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.names import TOPIC_DOMAINS, check_namespace
from txnframework.model.transactions import Transaction

PAGE_MAX = 10_000


class InspectionOperations(ClientOperations):
    """The descriptions of ``Client``. They open what they read for the duration of a call only."""

    async def list_topics(
        self,
        namespace: str = "",
        *,
        domain: str = "",
        after: Name | None = None,
        topics_max: int = 1_000,
    ) -> tuple[Layout, ...]:
        """
        Return the layouts of a page of topics, persistent topics before scalable ones, in the order of their names.

        :param namespace: only topics of this ``tenant/namespace``; empty: of all namespaces.
        :param domain: only topics of this domain, ``topic`` or ``persistent``; empty: of both.
        :param after: the last topic of the previous page; it may have been deleted.
        :param topics_max: the page size; a shorter page is the last one.
        """
        place = check_namespace(namespace) if namespace != "" else None
        if domain not in ("", *TOPIC_DOMAINS):
            raise InvalidInput(f"{excerpt(domain)} is no domain of topics; there are {' and '.join(TOPIC_DOMAINS)}")
        last = None if after is None else self._topic(after)
        whole_number(topics_max, "topics_max", 1, PAGE_MAX)
        return await self._retry.run(lambda: self.host.topics.page(topics_max, last, place, domain or None))

    async def describe_topic(self, topic: Name) -> TopicDescription:
        """
        Return the segments of a topic with their positions, and its subscriptions with their backlogs and holders.

        The parts are read one after the other, so messages may be sent and received in between. The time grows with
        the number of segments and subscriptions.

        :raises TopicNotFound: the topic does not exist.
        """
        layout = await self.host.topics.layout(self._topic(topic))
        async with naming_deletion(self.host, lambda: (layout,)):
            return await self._retry.run(lambda: self.host.inspection.topic(layout))

    async def describe_subscription(self, topic: Name, subscription: str) -> tuple[SubscriptionPosition, ...]:
        """
        Return the positions of a subscription, by segment, and the open transactions that acknowledged messages there.

        Acknowledgments of transactions that have ended are settled first.

        :raises SubscriptionNotFound: the subscription does not exist.
        :raises TopicNotFound: the topic does not exist.
        """
        named = self._topic(topic)
        check_subscription(subscription)
        layout = await self.host.topics.layout(named)
        async with naming_deletion(self.host, lambda: (layout,)):
            return await self._retry.run(lambda: self.host.inspection.subscription(layout, subscription))

    async def describe_transaction(self, txn_id: TxnID | str) -> Transaction:
        """
        Return what the stores know of a transaction: its state, times, owner and participants.

        Participants that are settled may be missing.

        :raises TransactionNotFound: the transaction never began, or its outcome is no longer kept.
        """
        asked = parse_txn_id(txn_id)
        coordinator = await self.host.coordinator_for(asked)
        return await self._retry.run(lambda: coordinator.describe(asked))

    async def count_transactions(self) -> tuple[FamilyStatus, ...]:
        """
        Return the numbers of open transactions and of unsettled operations, by family.

        The time grows with these numbers.
        """
        return await self._retry.run(lambda: self.host.status.families())

    async def leases(self, prefix: str = "", *, after: str = "", leases_max: int = 1_000) -> tuple[HeldLease, ...]:
        """
        Return a page of the leases that are held now, such as those of sessions, coordinators and dispatches.

        :param prefix: only leases whose names begin with it.
        :param after: the name of the last lease of the previous page; it may be free again.
        :param leases_max: the page size; a shorter page is the last one.
        """
        for given, what in ((prefix, "prefix"), (after, "after")):
            if not isinstance(given, str):
                raise InvalidInput(f"{what} is text, not {excerpt(given)}")
            encoded(given, what)
        whole_number(leases_max, "leases_max", 1, PAGE_MAX)
        return await self._retry.run(lambda: self.host.inspection.leases(prefix, after, leases_max))
