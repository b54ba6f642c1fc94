"""Clients that live in processes of their own, as used by tests."""
