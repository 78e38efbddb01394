"""Activities of schedules."""
