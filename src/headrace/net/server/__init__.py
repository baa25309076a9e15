"""The listener and its connections, with the budgets that bound them."""
