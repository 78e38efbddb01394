"""What every page is made with: templates, forms and what becomes of a press."""
