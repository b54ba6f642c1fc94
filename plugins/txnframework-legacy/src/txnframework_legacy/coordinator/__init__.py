"""
The coordinator ``log``: a transaction's state is what a log says of it, and the log's order decides.

Any process may append to a coordinator's log, and every process that wants to know reads it. A record takes effect if
the transaction is in the state that it expects *where the record stands*; otherwise it is passed over, by everybody
alike. So two ends that race have one outcome, that of the record which stands first. A process that was paused, or
whose lease on the coordinator went to another one, can append as late as it likes: its record is judged by its place.
That is why no writer is exclusive and nothing has to be fenced; leases only spread the coordinators over the hosts.

``records`` is what stands in a log, ``states`` what it means (pure), ``log`` one coordinator's log as a process knows
it, ``logs`` those of the family; ``ending`` decides and tells the participants, ``sweeping`` does both for what was
left.
"""
