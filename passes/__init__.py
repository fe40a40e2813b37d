"""Graph rewrites on ATen graphs: one file per pass, one tuple that is their order."""
