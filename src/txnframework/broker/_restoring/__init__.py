"""Going on after a restore: an operator's command that stands above a host."""
