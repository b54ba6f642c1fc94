"""
What servers for tests have in common, whatever they are; the servers are in the distributions that use them.

* ``embedded``: servers by name, for commands that take a URL; plugins offer them by the hook ``txnframework_servers``.
* ``proxy``: what stands between a client and any server.
* ``ports`` and ``guard``: for who writes a launcher. A server keeps its port, and does not outlive its tests.
"""
