"""Who a client is, and what it may do: decided on values alone."""
