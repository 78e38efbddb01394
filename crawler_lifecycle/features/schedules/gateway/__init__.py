"""Commands, routes and pages for schedules."""
