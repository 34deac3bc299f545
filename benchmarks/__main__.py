"""`python -m benchmarks`: both benchmarks, with their defaults or the options given."""

from __future__ import annotations

from benchmarks import mixture, scoring

if __name__ == "__main__":
    mixture.main([])
    scoring.main()
