"""The environment of Go programs in tests: servers and short commands, in parallel with others."""

#: They collect garbage less often, which trades memory for processor time, and their threads do not
#: poll each other for work.
FRUGAL = {"GOGC": "400", "GOMAXPROCS": "1"}
