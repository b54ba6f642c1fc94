"""
Shared parts of test servers of all kinds; the servers themselves are in the distributions that use them.

* ``embedded``: servers by name, for commands that take a URL; plugins offer them by the hook ``txnframework_servers``.
* ``proxy``: a proxy between a client and any server, which disturbs their connections.
* ``clusters``: base classes of launchers. A server keeps its port, and does not outlive its tests.
* ``processes``: free ports, and the guard that ends a server with its tests.
"""
