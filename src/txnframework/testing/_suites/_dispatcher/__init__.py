"""The rules of IDispatcher, by topic."""
