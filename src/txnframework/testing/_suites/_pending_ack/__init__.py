"""Rules of IPendingAckStore, by topic."""
