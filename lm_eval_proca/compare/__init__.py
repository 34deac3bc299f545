"""What result folders say together: the paper's table, a leaderboard across models, a page to look at.

`results` reads what lm-eval wrote, `datasets` decides which results may stand in one column, `blocks` are
the paper's table, `leaderboard` ranks, `comparison` holds it all, with the arithmetic of `lm_eval_proca.metrics`;
`formats` and `page` only draw. `display` and `figures` draw the paper's figures from what its analyses observe.
"""
