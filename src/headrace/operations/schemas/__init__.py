"""Keys and values of records as their schemas say: where schemas come from, and a bounded decoder."""
