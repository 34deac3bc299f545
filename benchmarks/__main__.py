"""`python -m benchmarks`: all benchmarks, with their defaults or the options given."""

from __future__ import annotations

from benchmarks import mixture, representations, scoring, several_prompts

if __name__ == "__main__":
    mixture.main([])
    representations.main([])
    several_prompts.main([])
    scoring.main()
