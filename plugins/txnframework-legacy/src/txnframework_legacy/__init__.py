"""The log family: transactions kept in logs, as PIP-31 has them."""
