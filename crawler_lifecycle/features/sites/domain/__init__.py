"""The rules of sites, without any input or output."""
