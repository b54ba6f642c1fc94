"""The rules of ITransactionBuffer, by topic."""
