"""For who tests pipelines, and for plugin authors: ``cluster`` is Spark's own cluster, on this machine."""
