"""A store: one directory that holds an environment's whole history; its log, names, settings and places."""
