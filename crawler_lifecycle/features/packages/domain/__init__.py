"""Rules of packages."""
