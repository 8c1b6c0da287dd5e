"""Many launches, many results, one comparison."""
