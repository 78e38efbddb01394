"""``python -m crawler_lifecycle.cli`` is ``crawlctl``."""

from crawler_lifecycle.cli.main import main

if __name__ == "__main__":
    main()
