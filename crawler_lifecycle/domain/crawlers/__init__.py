"""The definition of a crawler, including its arguments, settings and pod options."""
