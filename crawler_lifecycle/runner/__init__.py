"""The runner: the program that starts the crawler inside a pod or a local process, and reports how
it ended.

It uses only the standard library and imports nothing from the rest of the package. So this folder
can be copied or mounted into any image with Python 3.9 or newer, and started as ``python
/path/to/runner …``.
"""

VERSION = "1"
