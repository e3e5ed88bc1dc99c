"""A run made small: Parquet files and their manifest, written and read."""
