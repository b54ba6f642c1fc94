"""
Serves the topics of the framework to clients of Apache Pulsar.

How the two systems fit together:

* Topics. A client's ``persistent://tenant/namespace/name`` is the topic of that name in the one domain that a
  gateway serves: ``topic``, with the transactions of the metadata-driven family, or ``persistent``, with those of the
  log-driven one. A gateway has one domain, because a client begins a transaction before it names a topic.
* Segments. A client sees one topic without partitions. Pulsar's partitions never become fewer, and clients hash
  keys to them by their own rules, so segments cannot be partitions. The gateway's producer routes each message by its
  key. Its consumer merges the segments, parents before children. So the messages of a key keep their order, also
  across a split or merge, which clients do not notice.
* Messages. Each message of a client is one message of the framework: a batch is divided (``wire.batches``). So
  acknowledgments, transactions and keys of single messages are those of the framework, and clients of both kinds
  share topics. Properties are headers. The rest of the metadata is kept in one header. An encrypted batch cannot be
  divided, and is one message.
* Message ids (``ids``). The ledger id of a client holds the segment's number and the ledger; its entry id holds the
  entry and the index in it. So an id says everything, is the same after any restart and on any gateway, and in one
  segment grows with the messages. Children have higher numbers than their parents.
* Acknowledgments. A gateway remembers what it gave to a consumer, in order. A cumulative acknowledgment names a
  message in this order, and becomes one acknowledgment for each segment. After a lost connection the client may still
  name messages by their ids; a cumulative acknowledgment then covers the message's segment and its ancestors only.
* Sequence ids are those of the client, so a message that is sent again is stored once. A producer that chooses its
  name continues from the last sequence id of that name.
* Order. After a message that was not stored, a producer stores nothing more, and its client opens it again. So the
  client repeats its messages in their order.
* Transactions. All operations of a transaction pass through the gateway that began it, in branch 0. Its commit
  waits for those in flight. When a gateway dies, its open transactions are aborted, because no other process knows
  which of their operations were confirmed.
* Gateways. Of several gateways over the same stores, one serves all topics of a domain (``turn``), because of the
  transactions. So what clients share, such as sole producers, is decided in one process.
"""
