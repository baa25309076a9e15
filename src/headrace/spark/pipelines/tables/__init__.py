"""Tables of Parquet files: written, published, compacted and read."""
