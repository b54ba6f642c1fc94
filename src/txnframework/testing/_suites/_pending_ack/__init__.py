"""The rules of IPendingAckStore, by topic."""
