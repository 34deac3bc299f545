"""What lm-eval calls: the task class, its demonstrations and estimate set, the filters, the gather over processes."""
