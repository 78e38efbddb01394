"""Settings of the project. All of them can be overridden with ``-s`` on the command line."""

BOT_NAME = "apidocs"
SPIDER_MODULES = ["apidocs.spiders"]
NEWSPIDER_MODULE = "apidocs.spiders"

# Manners: identify the crawler, obey robots.txt, leave pauses between requests.
USER_AGENT = "apidocs/1.0 (example crawler of a demonstration site; obeys robots.txt)"
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = 0.05
CONCURRENT_REQUESTS_PER_DOMAIN = 4
DOWNLOAD_TIMEOUT = 30
RETRY_TIMES = 3

# Nobody needs to log in to a running crawl, so no crawl opens a port.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False

# A pipeline rather than an extension: whoever runs the project may hand in EXTENSIONS, which would
# replace ours.
ITEM_PIPELINES = {"apidocs.pipelines.SupportingFiles": 900}

FEED_EXPORT_ENCODING = "utf-8"
