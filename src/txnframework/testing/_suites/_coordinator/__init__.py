"""The rules of ITransactionCoordinator and IApplicationCoordinator, by topic."""
