"""``txnframework job export``: messages committed since the last export, as Parquet, each message once."""
