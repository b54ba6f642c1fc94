"""
The pending-ack store ``metadata``: the acknowledgments of one subscription that wait for their transactions.

``groups`` gathers what waits for its turn, ``writing`` puts it, ``look`` finds afterwards whether it conflicts with
others' ``records``, ``confirmed`` is what this process has told its callers. ``store`` is the role.
"""
