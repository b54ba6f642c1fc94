"""PostgreSQL: the connections of one event loop, what their errors mean, and what wakes watches."""
