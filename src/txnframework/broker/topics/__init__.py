"""Topics and their subscriptions."""
