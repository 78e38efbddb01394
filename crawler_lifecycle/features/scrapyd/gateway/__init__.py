"""The API of scrapyd, with which clients of scrapyd can use this gateway."""
