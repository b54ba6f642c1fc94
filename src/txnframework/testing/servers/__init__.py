"""
Real servers for tests, on this machine: started in a second, killed, paused and cut off as the test says.

* ``postgresql`` and ``zookeeper``: the servers. ``postgresql_databases``, and ``shared_hosts`` of ``zookeeper``, give a
  place on one that a whole run of tests shares, or on one that the environment names.
* ``proxy``: what stands between a client and any server. ``zookeeper_frames`` shows it ZooKeeper's messages.
* ``zookeeper_security``: servers that ask for a login, or that are reached by TLS.
* ``embedded``: servers by name, for commands that take a URL.
"""
