"""
Transactions that are one step of the store, because all their operations are known before they begin.

Whether a transaction can be one step depends on the stores, and on what happens meanwhile: a split, an acknowledgment
in another transaction, a send of the same producer that is under way. If it cannot, nothing is written, and
``Client.transact`` makes the usual steps, which resolve all of this.

``transaction`` makes the step, with ``appends`` to segments and ``acks`` of subscriptions.
"""
