"""The run directory: what lies where, who writes it, and how it is written."""
