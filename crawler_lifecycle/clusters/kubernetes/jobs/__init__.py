"""Jobs: making them, deleting them, and removing our finalizer from their pods."""
