"""Topics: their layouts and changes of them, their subscriptions, their end."""
