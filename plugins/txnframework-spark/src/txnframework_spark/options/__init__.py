"""Options of ``readStream`` and ``writeStream``, typed and checked; their names follow Spark's Kafka source and sink.

Both take ``config`` (the path of a TOML file as ``txnframework`` reads it), or ``metadata`` and ``ledger`` (the URLs of
the stores; without ``ledger`` both live in one place), or neither for the embedded default. Names are matched without
regard to case, as everywhere in Spark.
"""
