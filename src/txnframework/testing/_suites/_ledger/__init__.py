"""The rules of ILedgerStore and IManagedLedger, by what they speak of."""
