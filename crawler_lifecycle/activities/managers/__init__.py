"""Activities of crawl managers: cycles of users' classes, and what is done around them."""
