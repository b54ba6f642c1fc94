"""Handing messages to consumers, and taking their acknowledgments: one dispatch for each segment and subscription."""
