"""Settings of the project. A run's own settings win over all of them."""

BOT_NAME = "site_crawler"
SPIDER_MODULES = ["site_crawler.spider"]

# Manners: say who is asking, and obey robots.txt. The pause between requests is the argument ``delay``.
USER_AGENT = "crawler-lifecycle-site/1.0 (follows the links of one site; obeys robots.txt)"
ROBOTSTXT_OBEY = True
CONCURRENT_REQUESTS_PER_DOMAIN = 8

# A page is text for people. What is larger is no page, and what does not answer must not hold up the others for long.
DOWNLOAD_MAXSIZE = 16 * 1024 * 1024
DOWNLOAD_WARNSIZE = 0
DOWNLOAD_TIMEOUT = 30
RETRY_TIMES = 2
# Nearer to the server than Scrapy's own retry (550), which would hide the answer from it.
DOWNLOADER_MIDDLEWARES = {"site_crawler.retry_after.RetryAfter": 555}

# Every answer reaches the spider: a dead link is a finding, and where a redirect leads is checked like any other link.
HTTPERROR_ALLOW_ALL = True
REDIRECT_ENABLED = False
METAREFRESH_ENABLED = False
COOKIES_ENABLED = False

# Breadth first: a crawl that is cut off at its limit has then seen what lies nearest to the start.
DEPTH_PRIORITY = 1
SCHEDULER_DISK_QUEUE = "scrapy.squeues.PickleFifoDiskQueue"
SCHEDULER_MEMORY_QUEUE = "scrapy.squeues.FifoMemoryQueue"

# Nobody needs to log in to a running crawl, so no crawl opens a port.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False

# A pipeline rather than an extension: whoever runs the project may hand in EXTENSIONS, which would replace ours.
ITEM_PIPELINES = {"site_crawler.files.ItemsFile": 900}
FEED_EXPORT_ENCODING = "utf-8"
LOG_LEVEL = "INFO"
