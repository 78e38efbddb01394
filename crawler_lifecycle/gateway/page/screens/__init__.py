"""What is on somebody's screen, and how it moves."""
