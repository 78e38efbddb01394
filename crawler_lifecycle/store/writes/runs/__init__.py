"""What is written about a run, a module for each stage or concern."""
