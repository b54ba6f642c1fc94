"""Options of ``readStream`` and ``writeStream``, typed and checked; their names follow Spark's Kafka source and sink.

Both sides take ``config`` (the path of a TOML file as ``txnframework`` reads it), or ``metadata`` and ``ledger`` (the
URLs of the stores). Without ``ledger`` both stores have one URL; without any of these, the embedded default is used.
Names are case-insensitive, as everywhere in Spark.
"""
