"""What is done to schedules."""
