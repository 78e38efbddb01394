"""What is written about graphs and their steps."""
