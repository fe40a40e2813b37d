"""ATen graphs into StableHLO: one registry of rules, one walk."""
