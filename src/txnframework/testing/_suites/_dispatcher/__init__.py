"""Rules of IDispatcher, by topic."""
