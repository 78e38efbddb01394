"""Questions of an operator to a Temporal server: its version, search attributes, and who polls task queues."""
