"""``txnframework job export``: what was committed since the last export, as Parquet, each message once."""
