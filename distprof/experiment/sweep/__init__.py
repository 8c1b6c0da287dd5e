"""The sweep: Hydra makes the points, the core measures them, and what is better is told by measurement."""
