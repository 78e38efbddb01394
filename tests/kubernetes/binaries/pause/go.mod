module crawler-lifecycle.invalid/pause

go 1.24
