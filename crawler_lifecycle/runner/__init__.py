"""The runner: what executes inside a pod or a local process, around the crawler.

Standard library only, and nothing of the rest of the package: this folder can be copied or mounted into any image that
has Python 3.9 or newer, and started as ``python /path/to/runner …``.
"""

VERSION = "1"
