"""Exchange between stores: clone, fetch and push."""
