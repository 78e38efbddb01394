"""Access: operations and roles, tokens, limits."""
