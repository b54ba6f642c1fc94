"""Topics as input: offsets are planned in one long-lived process, ranges are read in tasks."""
