"""A trace in the formats of other tools: Perfetto, Chrome JSON, OTF2, CSV and Parquet."""
