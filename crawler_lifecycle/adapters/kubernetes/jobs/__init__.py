"""Jobs: made, stopped, and let go of."""
