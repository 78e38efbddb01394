"""The rules of crawl managers: jobs, order, window and numbers; and Scrapy Cloud's words for them."""
