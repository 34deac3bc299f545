"""Runs that exist already: read what `lm_eval` left, calibrate it, write it as lm-eval does."""
