"""What to start, and where."""
