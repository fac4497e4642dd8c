"""Usage and buckets as text for terminals: numbers in, lines out.

``bars`` draws single bars, ``timeline`` puts snapshots in order and folds them into as many bars as
fit, ``plot`` draws those. Nothing here reads a store, a clock or a terminal, and nothing
writes colours: who prints knows what the terminal can show.
"""
