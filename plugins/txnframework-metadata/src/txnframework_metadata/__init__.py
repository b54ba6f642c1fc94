"""The metadata-driven family: a transaction is one record, and ending it is one compare-and-set."""
