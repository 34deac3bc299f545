"""What result folders say together: the paper's table, a leaderboard across models, a page to look at.

`results` reads what lm-eval wrote, `names` names it; `columns` decides which results may stand in one column; `blocks`
are the paper's table; `leaderboard` ranks, with the tests of `logged_answers`; `comparison` holds it all. `tables`,
`formats` and `page` only draw.
"""
