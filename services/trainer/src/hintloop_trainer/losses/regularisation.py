"""What is added to any loss, custom ones too: the KL to the reference policy, and the entropy bonus.

Legend: N = trained tokens of a micro-batch. Log-probabilities are nats at the sampling temperature, because that is
what the tokens were drawn at: at another one, their mean would estimate no KL.
"""

from __future__ import annotations

from typing import Literal

import torch

from hintloop_trainer.losses.policy import bounded_exp

Estimator = Literal["k1", "k2", "k3"]


def kl_term(estimator: Estimator, new_N: torch.Tensor, old_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """KL(student || reference) of each sampled token, ``[N]``, differentiable in ``new_N`` alone.

    With ``d = reference - student`` (Schulman, Approximating KL Divergence, 2020):

    - ``k1``: ``-d``. Its own derivative has mean 0 and would hold the student nowhere, so it enters as a penalty does:
      ``ratio * (old - reference)``, the ratio that of student now to student before the step. Value ``-d`` and the
      gradient of the reverse KL where that is 1.
    - ``k2``: ``d^2 / 2``. Biased as a value; its derivative has the reverse KL's gradient as its mean.
    - ``k3``: ``exp(d) - d - 1``. Unbiased and never negative; its derivative has the forward KL's gradient as its mean
      (as in GRPO, arXiv 2402.03300, equation 4).
    """
    if estimator == "k1":
        return bounded_exp(new_N - old_N) * (old_N - reference_N)
    difference_N = reference_N - new_N
    if estimator == "k2":
        return difference_N.square() / 2
    return bounded_exp(difference_N) - difference_N - 1.0
