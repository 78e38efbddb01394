"""The catalogue in the database: entries that people and packages set, with all their versions."""
