"""A website to crawl that needs no internet: the API reference of a few hundred cloud services.

The pages are rendered on demand from the API models that botocore installs, so there is nothing to
download and nothing to commit, yet the text is real, the links are many, and the size can be
chosen. A few sections misbehave on purpose (redirects, missing pages, pages that are down every
other time, slow pages), because crawlers meet all of that.

Run it with ``python -m examples.site --port 8400 --services 12``.
"""
