"""Durable cursors: what a subscription is done with on one segment, and the batches that got it there."""
