"""The scores of a run: the table that keeps them, what makes two runs the same, and what is fitted on them."""
