"""
Real ZooKeeper servers for tests, on this machine; they need Java, and PySpark for its jars.

* ``zookeeper``: a server or an ensemble that tests kill, pause and restart. ``shared_hosts`` returns a server that a
  whole test run shares, or the servers that the environment names.
* ``security``: servers that require a login, or that use TLS.
* ``frames``: lets a proxy before a server handle requests and replies instead of bytes.
"""
