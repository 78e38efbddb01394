"""A worker process: it executes activities and workflows, and runs background services."""
