"""Parts that all web pages use: templates, forms, and the answers to actions."""
