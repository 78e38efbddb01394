"""The logs and metrics of our processes, without secrets."""
