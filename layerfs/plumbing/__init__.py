"""What plumbing commands do with single objects and names."""
