"""
Real ZooKeeper servers for tests, on this machine; they need Java, and PySpark for its jars.

* ``zookeeper``: a server or an ensemble, killed, paused and started again as a test says. ``shared_hosts`` is one that
  a whole run of tests shares, or what the environment names.
* ``security``: servers that ask for a login, or that are reached by TLS.
* ``frames``: shows a proxy before a server requests and replies instead of bytes.
"""
