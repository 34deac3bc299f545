"""What lm-eval calls: the task classes, their documents, settings and filters."""
