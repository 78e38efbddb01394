"""What is done to crawl managers."""
