"""Entry point of ``python -m crawler_lifecycle.cli``, which is ``crawlctl``."""

from .main import main

if __name__ == "__main__":
    main()
