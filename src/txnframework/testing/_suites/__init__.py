"""The suites: every sentence of a role's docstring as a test."""
