"""What changed: two watches, however many runs there are."""
