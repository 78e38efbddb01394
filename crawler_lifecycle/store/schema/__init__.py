"""The tables, and how their rows become values."""
