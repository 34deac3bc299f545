"""Calibrators of label scores: numbers in, numbers out; nothing of lm-eval or torch is imported here."""
