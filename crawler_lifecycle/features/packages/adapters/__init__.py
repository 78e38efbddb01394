"""Sources and stores for the code of packages."""
