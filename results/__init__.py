"""Our tables and figures: sweeps in, results files in the middle, documents out. See CONTRIBUTING.md."""
