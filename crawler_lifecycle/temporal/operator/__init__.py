"""What an operator asks of a Temporal server: its version, search attributes, and who polls task queues."""
