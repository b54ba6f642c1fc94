"""Rules of ITransactionCoordinator and IApplicationCoordinator, by topic."""
