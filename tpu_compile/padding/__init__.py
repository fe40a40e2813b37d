"""Sizes rounded up to buckets: one program for many lengths, where padding changes no result.

A symbolic graph is rewritten so that what it computes in the valid part of each tensor does not
depend on what stands in the padding (``rewrite``), by a rule for each op that moves elements
between positions (``rules``); an op without one is refused. ``bucketed`` pads arguments and cuts
results.
"""
