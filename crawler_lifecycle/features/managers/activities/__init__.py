"""Activities of crawl managers: the cycles of users' classes, and the work around them."""
