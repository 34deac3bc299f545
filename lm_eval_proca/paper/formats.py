"""ProCa on log-likelihoods, probabilities and log-probabilities over the labels (Figure 8).

The paper's third format is the logit of each label token. lm-eval returns log-likelihoods: the logit less the log of
the sum over the whole vocabulary.
"""

from __future__ import annotations

from lm_eval_proca.paper.selection import Ablation
from lm_eval_proca.sweep.grid import Grid


class Formats(Ablation):
    plan = Grid(("proca_sst2", "proca_agnews", "proca_ap"), shots=(0, 4))
    printed = ("features",)
    values = ("log_likelihood", "prob", "log_prob")
    note = "log_likelihood is the logit less the log of the sum over the vocabulary, not quite the paper's logit."

    def footnote(self) -> str:
        return f"{super().footnote()}; {self.note.removesuffix('.')}"
