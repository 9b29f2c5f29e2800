"""What people may choose, a file a verb: declared once, for signatures, flags, checks and docs.

Light on purpose: the command line reads these before torch is loaded.
"""
