"""Parts that every page is made with: templates, forms and the answer to a press."""
