"""What programs in Go get into their environment from tests: servers and commands that live
shortly, beside others.
"""

#: They collect their garbage less often, memory for processor time, and their threads do not poll
#: for work of each other.
FRUGAL = {"GOGC": "400", "GOMAXPROCS": "1"}
