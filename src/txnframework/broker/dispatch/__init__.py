"""Delivery of messages to consumers, and their acknowledgments: one dispatch per segment and subscription."""
