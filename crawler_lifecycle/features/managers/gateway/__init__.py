"""Commands, routes and pages for crawl managers."""
