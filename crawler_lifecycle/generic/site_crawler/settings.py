"""Settings of the Scrapy project. A run's own settings override them."""

BOT_NAME = "site_crawler"
SPIDER_MODULES = ["site_crawler.spider"]

# Be polite: identify the crawler, and obey robots.txt. The argument ``delay`` is the pause between
# requests.
USER_AGENT = "crawler-lifecycle-site/1.0 (follows the links of one site; obeys robots.txt)"
ROBOTSTXT_OBEY = True
CONCURRENT_REQUESTS_PER_DOMAIN = 8

# A larger response is hardly a readable page. A server that does not respond must not delay other
# requests for long.
DOWNLOAD_MAXSIZE = 16 * 1024 * 1024
DOWNLOAD_WARNSIZE = 0
DOWNLOAD_TIMEOUT = 30
RETRY_TIMES = 2
# Scrapy's own retry middleware has the number 550. The middleware with the greater number gets the
# response first.
DOWNLOADER_MIDDLEWARES = {"site_crawler.retry_after.RetryAfter": 555}

# The spider gets every response, because it records dead links and checks the target of a redirect
# like any other link.
HTTPERROR_ALLOW_ALL = True
REDIRECT_ENABLED = False
METAREFRESH_ENABLED = False
COOKIES_ENABLED = False

# Crawl breadth-first, so that a crawl that reaches its limit has read the pages that are nearest to
# the start.
DEPTH_PRIORITY = 1
SCHEDULER_DISK_QUEUE = "scrapy.squeues.PickleFifoDiskQueue"
SCHEDULER_MEMORY_QUEUE = "scrapy.squeues.FifoMemoryQueue"

# No crawl needs a remote console, so no port is opened for one.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False

# The files are written by a pipeline instead of an extension, because the EXTENSIONS in a run's
# settings would replace ours.
ITEM_PIPELINES = {"site_crawler.files.ItemsFile": 900}
FEED_EXPORT_ENCODING = "utf-8"
LOG_LEVEL = "INFO"
