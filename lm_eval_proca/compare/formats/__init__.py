"""One module per format of `lm-eval-proca compare`; each turns a report into text."""
