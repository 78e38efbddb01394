"""Commands, routes and pages for graphs."""
