"""The log family: transactions kept in logs, as in PIP-31."""
