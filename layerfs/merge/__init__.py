"""Everything that compares states: line diff, text merge, the three-way rule, conflicts, merge base and blame.

The room is pure: values come in (contents through a reader, times as arguments), values and objects go out. No clock,
no disk, no environment. Nothing here decides what happens to a conflict; that is the caller's business.
"""
