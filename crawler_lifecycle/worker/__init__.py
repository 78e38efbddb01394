"""One worker process, and its background tasks beside the activities."""
