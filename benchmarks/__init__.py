"""Speed and memory against stock lm-eval and scikit-learn, as ratios measured in one run."""
