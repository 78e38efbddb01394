"""What is written about crawl managers and their jobs."""
