"""Opens, closes and deletes the logs of partitions, and decides where a log begins that joins durable history."""
