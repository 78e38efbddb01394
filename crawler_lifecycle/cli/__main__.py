"""``python -m crawler_lifecycle.cli`` is ``crawlctl``."""

from .main import main

if __name__ == "__main__":
    main()
