"""Where tasks are executed: one package for each kind of cluster."""
