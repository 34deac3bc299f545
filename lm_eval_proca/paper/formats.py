"""ProCa on log-likelihoods, probabilities and log-probabilities over the labels (Figure 8).

The paper's third format is the logit of each label token. lm-eval returns log-likelihoods: the logit less the log of
the sum over the whole vocabulary.
"""

from __future__ import annotations

from lm_eval_proca.metrics import mean_by
from lm_eval_proca.paper.analysis import Analysis, Plan
from lm_eval_proca.paper.observations import PROMPT
from lm_eval_proca.paper.selection import AblationDisplay, ablate

NOTE = "log_likelihood is the logit less the log of the sum over the vocabulary, not quite the paper's logit"


class FormatDisplay(AblationDisplay):
    parameter = "features"

    def footnote(self) -> str:
        return f"{super().footnote()}; {NOTE}"


ANALYSIS = Analysis(
    Plan(("proca_sst2", "proca_agnews", "proca_ap"), shots=(0, 4)),
    ablate("features", "log_likelihood", "prob", "log_prob"),
    mean_by(*PROMPT, "features"),
    FormatDisplay,
    note=f"{NOTE}.",
)
