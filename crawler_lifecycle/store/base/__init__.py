"""Base of all rooms: columns of every table, checks of rows, units of work, bulk statements, the outbox."""
