"""Language models for lm-eval."""
