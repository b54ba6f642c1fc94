"""The legacy family: transactions kept in logs, as PIP-31 has them."""
