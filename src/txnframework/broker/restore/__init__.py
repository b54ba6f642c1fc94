"""Repair of a pair of stores after a restore from a backup."""
