"""Client of the gateway's HTTP API: calls, errors, polling."""
