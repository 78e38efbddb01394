"""The API of scrapyd, so that clients of scrapyd can use this gateway."""
