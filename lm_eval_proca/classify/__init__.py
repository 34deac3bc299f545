"""Texts in, labels out: a prompt and a language model as a classifier of texts, calibrated without a label."""
