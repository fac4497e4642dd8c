"""How a bucket is used: seen, planned, written, waited for in line, split, settled.

``acquire`` is where to begin; everything else here is what it stands on.
"""
