"""The tables, and what their rows mean."""
