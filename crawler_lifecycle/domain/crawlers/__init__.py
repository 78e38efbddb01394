"""The definition of a crawler, with its arguments, settings and pod."""
