"""The definition, arguments, settings and pod of a crawler."""
