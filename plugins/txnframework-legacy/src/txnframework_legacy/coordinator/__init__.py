"""
The coordinator ``log``: each transaction's state is derived from a log, and the order of its records decides.

Any process may append to a coordinator's log, and any process may read it. A record takes effect if the transaction is
in the state that the record expects *at the record's position*. Otherwise every reader skips the record. Of two
concurrent ends, the record that is stored first therefore decides the outcome. A process that was paused, or that lost
its lease on the coordinator, may append late: only the record's position counts. So no writer is exclusive and no
writer is fenced; leases only distribute the coordinators over the hosts.

* ``records`` are the stored records, ``state`` their meaning, without I/O.
* ``log`` are the coordinators' logs as this process has read them.
* ``completion`` decides transactions and settles them at the participants.
* ``sweeper`` does both for overdue and unfinished transactions, and forgets old ones.
* ``coordinator`` is the role.
"""
