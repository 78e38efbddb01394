"""Base of all rooms: checks of rows, units of work, bulk statements, the outbox."""
