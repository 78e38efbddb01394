"""Creation and deletion of Jobs, and the removal of our finalizer from their pods."""
