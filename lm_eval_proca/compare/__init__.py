"""What result folders say together: the paper's table, a leaderboard across models, a page to look at.

`results` reads what lm-eval wrote, `names` what to call it; `columns` decides which results may stand in one column,
`blocks` are the paper's table, `leaderboard` ranks, with `logged_answers` for its tests; `comparison` holds it all.
`tables`, `formats` and `page` only draw.
"""
