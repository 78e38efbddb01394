"""Common code of the store: checks of rows, units of work, bulk statements, the outbox."""
