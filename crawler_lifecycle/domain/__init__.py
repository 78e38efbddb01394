"""The words and rules of a crawl: pure Python, standard library only, no input or output, no Temporal."""
