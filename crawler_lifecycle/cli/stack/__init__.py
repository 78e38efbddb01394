"""The stack of ``crawlctl dev``: all services on this machine."""
