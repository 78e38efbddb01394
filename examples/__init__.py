"""Examples to try the service with: a website to crawl, crawlers for it, and their catalogue."""
