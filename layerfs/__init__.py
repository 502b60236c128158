"""layerfs: version control for whole environments."""

__version__ = "0.1.0"
