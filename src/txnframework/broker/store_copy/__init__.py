"""Copies of whole deployments between stores, and the comparison of two deployments."""
