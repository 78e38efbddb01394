"""The environment of Go programs in tests: servers and short commands, in parallel with others."""

#: They collect their garbage less often, memory for processor time, and their threads do not poll
#: for work of each other.
FRUGAL = {"GOGC": "400", "GOMAXPROCS": "1"}
