"""Checkout: a state of a store made, or brought about, in a directory on disk."""
