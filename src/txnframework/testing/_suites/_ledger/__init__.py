"""The rules of ILedgerStore and IManagedLedger, by topic."""
