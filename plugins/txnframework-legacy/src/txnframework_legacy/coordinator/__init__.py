"""
The coordinator ``log``: each transaction's state is derived from a log, and the order of its records decides.

Any process may append to a coordinator's log, and any process may read it. A record takes effect if the transaction is
in the state that the record expects *at the record's position*. Otherwise every reader skips the record. Of two
concurrent ends, the record that is stored first therefore decides the outcome. A process that was paused, or that lost
its lease on the coordinator, may append late: only the record's position counts. So no writer is exclusive and no
writer is fenced; leases only distribute the coordinators over the hosts.

* ``records`` are the stored records, ``states`` their meaning, without I/O.
* ``log`` is one coordinator's log as this process has read it, ``logs`` all logs of the family.
* ``ending`` decides transactions and delivers outcomes to the participants.
* ``sweeping`` does both for transactions that were left unfinished.
"""
