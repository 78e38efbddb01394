"""Settings of the project. The option ``-s`` of the command line overrides each of them."""

BOT_NAME = "apidocs"
SPIDER_MODULES = ["apidocs.spiders"]
NEWSPIDER_MODULE = "apidocs.spiders"

# Be polite: identify the crawler, obey robots.txt, and pause between requests.
USER_AGENT = "apidocs/1.0 (example crawler of a demonstration site; obeys robots.txt)"
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = 0.05
CONCURRENT_REQUESTS_PER_DOMAIN = 4
DOWNLOAD_TIMEOUT = 30
RETRY_TIMES = 3

# Nobody needs to log in to a running crawl, so no crawl opens a port.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False

# Use a pipeline instead of an extension, because EXTENSIONS of a run would replace ours.
ITEM_PIPELINES = {"apidocs.pipelines.SupportingFiles": 900}

FEED_EXPORT_ENCODING = "utf-8"
