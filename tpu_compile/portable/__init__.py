"""Models as files: versioned StableHLO, weights and a manifest, run with no Python model code."""
