"""What a crawler is: its definition, arguments, settings and pod."""
