"""Commands, routes and pages for webhooks."""
