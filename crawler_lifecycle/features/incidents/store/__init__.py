"""The record of incidents."""
