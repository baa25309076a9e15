"""The read side of ``format("headrace")``: plans, tasks, and batches decoded to Arrow."""
