"""An interpreter of plain arithmetic in Python's syntax; `taskfactory.formulas` is the way to it.

subset (what may be used) → meter (the bounds) → arithmetic → expressions → machine (functions and statements).
"""
