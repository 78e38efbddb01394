"""The parts that all web pages use: templates, forms, and the results of actions."""
