"""One partition's replica, sans-IO: the leader's view, the high watermark, producer state."""
