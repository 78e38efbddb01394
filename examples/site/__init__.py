"""A website to crawl that needs no internet: the API reference of a few hundred cloud services.

The pages are rendered on demand from the API models that botocore installs, so nothing is
downloaded or committed. The text is real, there are many links, and the size can be chosen. A few
sections misbehave on purpose (redirects, missing pages, pages that fail every other time, slow
pages), because crawlers meet all of these.

Run it with ``python -m examples.site --port 8400 --services 12``.
"""
