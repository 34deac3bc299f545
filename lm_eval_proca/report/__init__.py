"""What result folders say together: the paper's table, a leaderboard across models, a page to look at.

`results` and `samples` read what lm-eval wrote, `datasets` decides which results may stand in one column, `scores` and
`paired_test` do the arithmetic, `leaderboard` ranks, `comparison` holds it all; `formats` and `page` only draw.
"""
