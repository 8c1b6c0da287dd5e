"""Analyses: tables in, frozen results out. No files, no printing, no state."""
