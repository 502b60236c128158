"""Presentation: pure functions from a value to a :class:`~layerfs.cli.output.Reply`, one module per noun.

They open nothing, print nothing and know no clock: what they need (columns, offsets) is an argument.
"""
