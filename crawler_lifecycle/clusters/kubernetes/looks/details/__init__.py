"""Details of a task that objects do not hold: log tail, counters, memory, the runner's summary."""
