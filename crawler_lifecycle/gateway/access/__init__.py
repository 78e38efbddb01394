"""Access control: operations, roles, tokens and limits."""
