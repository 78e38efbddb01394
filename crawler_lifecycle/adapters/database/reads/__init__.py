"""Everything that only reads rows."""
