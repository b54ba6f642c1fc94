"""The proof that two connections use one database of one server."""

from __future__ import annotations

from txnframework.environment import Environment
from txnframework_sql.postgresql._pool import Pool

_TAKE = "SELECT pg_try_advisory_lock($1)"
_KEY_BITS = 63


class Witness:
    """
    An advisory lock with a random key, held by a connection of the store.

    An advisory lock exists in one database of one server, and no other process knows the key. So a connection that
    finds the key taken is connected to the store's database. A connection of a copy, a standby or an older primary
    finds it free. The check tries to take the key in shared mode, so that two checks at one time never exclude each
    other.
    """

    def __init__(self, pool: Pool, environment: Environment) -> None:
        self._pool = pool
        self._environment = environment
        self._key: int | None = None

    async def key(self) -> int:
        """Return the key of a lock that the store holds, unless it has lost that connection meanwhile."""
        return await self.renew() if self._key is None else self._key

    async def renew(self) -> int:
        """Take a lock with another key; return the key."""
        key = self._environment.random_bits(_KEY_BITS)
        async with self._pool.lend() as connection:
            await connection.read(_TAKE, key)
        self._key = key
        return key
