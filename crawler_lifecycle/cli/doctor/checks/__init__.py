"""Checks of the doctor, one module for each subject."""
