"""One worker process, and what runs in it beside the activities."""
