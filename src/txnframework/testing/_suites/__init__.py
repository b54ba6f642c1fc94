"""The suites: each rule in the docstring of a role is a test."""
