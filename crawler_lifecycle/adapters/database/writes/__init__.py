"""Everything that changes rows, each in one transaction."""
