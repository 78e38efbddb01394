"""The record of sites, of their tasks and of their leases."""
