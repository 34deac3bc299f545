r"""Anchored prototypes: Gaussian clusters that start at batch calibration and stay tied to it.

Nothing has to be matched: cluster k *is* label k from the start. Batch calibration gives every unlabeled document d
label probabilities r_dk, the **anchor**. A document is seen in one or two views, x_v:

- its scores: the log-probabilities of the labels as log-ratios to their mean, which sum to zero;
- its representation, if there is one: hidden states of a few layers, each scaled to unit root mean square, reduced to
  its principal components and scaled to a common size, side by side.

In each view a label is a Gaussian with one covariance for all labels,

.. math::
    m_{vk} = \frac{\sum_d r_{dk} x_{vd}}{\sum_d r_{dk}} \quad \text{(the anchor's means)}, \qquad
    \mu_{vk} = \frac{\kappa\, m_{vk} + \sum_d q_{dk} x_{vd}}{\kappa + \sum_d q_{dk}},

.. math::
    \Sigma_v = \frac{1}{n} \sum_{d,k} q_{dk} (x_{vd} - \mu_{vk})(x_{vd} - \mu_{vk})^T + \rho \frac{tr}{dim} I, \qquad
    q_{dk} \propto \pi_k \prod_v N(x_{vd}; \mu_{vk}, \Sigma_v)^{\omega_v}.

EM repeats the last two from q = r. Each label's mean is held by kappa further documents at the anchor's mean: with few
documents, or none that speak against it, the fit is the anchor's; with many, the data decide. The scores are a function
of the last hidden state, so beside a representation their view counts less, omega = 1 - 1/K for K labels. Covariances
are shared, so the result is a linear classifier. The shares pi of the labels are equal, or as `prior` says.

**Several prompts** show the same documents in further views. One mixture has the views of all m prompts, each with its
weight divided by m, and is anchored at the mean of their batch-calibrated log-probabilities: q is then the normalised
geometric mean of what the prompts say. A prompt alone may find clusters that are not those of the labels; here all
prompts must find the same ones. The part of prompt j, times m, is a calibrator of prompt j, and the mean of their
log-probabilities is the mixture again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, helmert
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax

from lm_eval_proca.calibration.base import Allowed, Array, Calibrator, number, whole_number
from lm_eval_proca.calibration.registry import registered_name
from lm_eval_proca.calibration.representation import principal_components
from lm_eval_proca.calibration.shares import are_shares, shares_of
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.representations import unit_scale

if TYPE_CHECKING:
    from typing_extensions import Self

RIDGE = 0.3
"""Share of the mean variance that is added to the covariance of a view."""

LEAST_VARIANCE = 1e-9
"""What the total variance of a view is at least, as a share of its mean square or of one: documents may be alike."""

LEAST_STABILITY = 0.5
LEAST_SHARE = 0.25


class Mixture(NamedTuple):
    """A fitted mixture: a linear classifier of the views, and how it was found."""

    coefs: list[Array]
    constants: list[Array]
    separation: float  # distance between the two closest labels, in units of the spread within labels
    n_iter: int
    converged: bool
    moving: float  # share of the documents whose most probable label the last step has changed

    def logits(self, views: Sequence[Array]) -> Array:
        return _logits(views, self.coefs, np.sum(self.constants, axis=0))


def fit_mixture(
    views: Sequence[Array],
    anchor: Array,
    *,
    strength: float,
    max_iter: int,
    tol: float,
    log_prior: Array | None = None,
    ridge: float = RIDGE,
    weights: Sequence[float] | None = None,
) -> Mixture:
    """EM from the anchor's label probabilities; `log_prior` None learns the shares of the labels as well."""
    n, n_labels = anchor.shape
    counts = anchor.sum(axis=0) + np.finfo(float).tiny
    held = [anchor.T @ x / counts[:, None] for x in views]
    squares = [x.T @ x for x in views]
    weights = weights or [1.0] * len(views)
    q = anchor
    converged, n_iter = False, 0
    while not converged and n_iter < max_iter:
        n_iter += 1
        found = [_discriminant(*view, q, strength, ridge) for view in zip(views, squares, held, weights, strict=True)]
        coefs, constants, gaps = zip(*found, strict=True)
        shares = np.log((q.sum(axis=0) + 1) / (n + n_labels)) if log_prior is None else log_prior
        before, q = q, softmax(_logits(views, coefs, sum(constants)) + shares, axis=1)
        converged = bool(np.abs(q - before).max() < tol)
    closest = np.sqrt(max(sum(gaps)[~np.eye(n_labels, dtype=bool)].min(), 0.0))
    moving = float((q.argmax(axis=1) != before.argmax(axis=1)).mean())
    return Mixture(list(coefs), list(constants), float(closest), n_iter, converged, moving)


def _logits(views: Sequence[Array], coefs: Sequence[Array], intercept: Array) -> Array:
    return sum((x @ coef for x, coef in zip(views, coefs, strict=True)), intercept)


def _discriminant(
    x: Array, square: Array, held: Array, weight: float, q: Array, strength: float, ridge: float
) -> tuple[Array, Array, Array]:
    """Coefficients (features, labels) and constants of log N(x; mu_k, Sigma), less what all labels share; and squared
    distances between the labels; all of them times the view's weight. `square` is x.T @ x, which no step changes."""
    counts, sums = q.sum(axis=0), q.T @ x
    means = (strength * held + sums) / (strength + counts + np.finfo(float).tiny)[:, None]
    crossed = sums.T @ means
    covariance = (square - crossed - crossed.T + (means.T * counts) @ means) / len(x)
    size = max(np.trace(covariance), LEAST_VARIANCE * max(np.trace(square) / len(x), 1.0)) / len(covariance)
    covariance[np.diag_indices_from(covariance)] += ridge * size
    coef = cho_solve(cho_factor(covariance), means.T)
    products = means @ coef
    norms = np.diag(products)
    return weight * coef, -0.5 * weight * norms, weight * (norms[:, None] + norms - products - products.T)


def _is_prior(value: Any) -> bool:
    return value in ("uniform", "estimated") if isinstance(value, str) else are_shares(value)


class AnchoredCalibrator(Calibrator):
    """Batch calibration, refined by a Gaussian mixture of the label scores that is anchored at it.

    It is for six labels or more: on the scores of up to five, nothing that was tried is better than batch calibration,
    so no mixture is fitted. With K labels the mixture's log-probabilities have the weight 1 - 5 / K.

    Parameters
    ----------
    anchor_strength : float, default=20
        Number of documents with which every label's mean is held at the anchor's.
    prior : "uniform", "estimated" or array-like of shape (n_labels,), default="uniform"
        Shares of the labels among the documents of the fit: equal, learned, or known. Known ones also decide what the
        anchor subtracts. New documents are taken to have any label equally often.
    max_iter : int, default=50
        Most steps of EM.
    tol : float, default=1e-4
        EM ends when no probability changes by more.

    Attributes
    ----------
    anchor_shift_ : ndarray of shape (n_labels,)
        What the anchor subtracts from log-probabilities; with a uniform prior their mean, as in batch calibration.
    score_coef_ : ndarray of shape (n_labels, n_labels)
        The mixture's coefficients of centred log-probabilities.
    intercept_ : ndarray of shape (n_labels,)
    temperature_ : float
        What log-probabilities are multiplied by, an inverse temperature: the mixture is too sure of itself.
    kept_anchor_ : str
        Why the anchor is returned instead of the mixture, or an empty string.
    estimated_accuracy_, separation_, agreement_, raw_agreement_, stability_, skew_, smallest_share_ : float
        Evidence, without labels, of how good the fit is; :meth:`fit_report` says it in sentences. Where no mixture is
        fitted there is only the first.
    n_iter_ : int
    converged_ : bool
        Whether EM met `tol` within `max_iter` steps.
    moving_ : float
        Share of the documents whose label the last step of EM has changed.

    Examples
    --------
    >>> import numpy as np
    >>> from lm_eval_proca import AnchoredCalibrator
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(8), 40)
    >>> evidence = 2 * np.eye(8)[truth] + np.eye(8)[(truth + 1) % 8]  # every label also raises its neighbour's score
    >>> scores = evidence + rng.normal(size=(320, 8)) + np.linspace(0, 2, 8)
    >>> bool(np.mean(scores.argmax(axis=1) == truth) < 0.6)
    True
    >>> bool(np.mean(AnchoredCalibrator().fit(scores).predict(scores) == truth) > 0.65)
    True
    """

    min_labels: ClassVar[int] = 6

    _allowed: ClassVar[dict[str, Allowed]] = {
        "anchor_strength": number(0),
        "prior": Allowed(_is_prior, "uniform, estimated or positive shares of the labels that sum to 1"),
        "max_iter": whole_number(1),
        "tol": number(0),
    }

    def __init__(
        self, *, anchor_strength: float = 20.0, prior: Any = "uniform", max_iter: int = 50, tol: float = 1e-4
    ) -> None:
        self.anchor_strength = anchor_strength
        self.prior = prior
        self.max_iter = max_iter
        self.tol = tol

    def _fit(self, scores: Array) -> None:
        _fit_together([self], [scores], [[]])

    def _calibrate(self, scores: Array, further: Array | float = 0.0) -> Array:
        """Calibrated scores, given what further views add to the mixture's logits."""
        log_proba = log_softmax(scores, axis=1)
        if self.kept_anchor_:
            return log_proba - self.anchor_shift_
        centred = log_proba - log_proba.mean(axis=1, keepdims=True)
        logits = centred @ self.score_coef_ + self.intercept_ + further
        return self.temperature_ * self._mixed(log_proba - self.anchor_shift_, logits)

    def _mixed(self, anchored: Array, logits: Array) -> Array:
        """The mixture beside the anchor: of scores alone, it counts the more the more labels there are."""
        weight = 1.0 if self.uses_representations else 1 - (self.min_labels - 1) / anchored.shape[1]
        return weight * logits + (1 - weight) * anchored

    def _log_prior(self, n_labels: int) -> tuple[Array | None, Array]:
        """What EM weighs labels with, and the shares that the anchor assumes."""
        named = isinstance(self.prior, str)
        shares = shares_of(self, self.prior, n_labels)
        if n_labels < self.min_labels and np.allclose(shares, 1 / n_labels):
            name = registered_name(type(self)) or type(self).__name__
            raise CalibrationError(
                f"With up to {self.min_labels - 1} labels {name} is batch calibration; take that (bc), or give unequal "
                f"shares of the labels as `prior`."
            )
        return (None if named and self.prior == "estimated" else np.log(shares)), shares

    def _report(self) -> dict[str, Any]:
        report = {"estimated_accuracy": self.estimated_accuracy_, "kept_anchor": self.kept_anchor_ or None}
        if self.n_labels_ < self.min_labels:
            return report
        same = ("stability", "skew", "smallest_share", "temperature", "n_iter", "converged", "moving")
        return {
            **report,
            "separation": self.separation_,
            "agreement_with_anchor": self.agreement_,
            "agreement_with_raw": self.raw_agreement_,
            **{name: getattr(self, f"{name}_") for name in same},
            "warnings": self._warnings(),
        }

    def _warnings(self) -> list[str]:
        known = {
            f"Batch calibration was kept: {self.kept_anchor_}.": self.kept_anchor_,
            f"Two labels lie {self.separation_:.2f} standard deviations apart, too close to tell them apart.": (
                self.separation_ < 1
            ),
            f"Label shares of the predictions and of the anchor differ by {self.skew_:.0%}.": self.skew_ > 0.2,
            f"The estimated accuracy is {self.estimated_accuracy_:.0%}, about chance.": (
                self.estimated_accuracy_ < 1.2 / self.n_labels_
            ),
            f"EM ended after {self.n_iter_} steps, while {self.moving_:.1%} of the labels still changed.": (
                self.moving_ and not self.converged_
            ),
        }
        return [sentence for sentence, holds in known.items() if holds]


class RepresentationCalibrator(AnchoredCalibrator):
    """Anchored prototypes in the model's own representation, beside its label scores.

    The hidden state at the position that predicts the label separates the classes better than the label scores do.
    Fitted on scores and hidden states of unlabeled documents, :class:`AnchoredCalibrator`'s mixture has both as views.

    Parameters
    ----------
    n_components : int, default=32
        Principal components of each layer, as far as there are four documents for each.
    anchor_strength, prior, max_iter, tol
        As in :class:`AnchoredCalibrator`.

    Attributes
    ----------
    layer_coef_ : ndarray of shape (n_layers, width, n_labels)
        Coefficients of the hidden states, each scaled to unit root mean square.

    Examples
    --------
    Scores that hardly tell two classes apart, hidden states that do:

    >>> import numpy as np
    >>> from lm_eval_proca import BatchCalibrator, RepresentationCalibrator
    >>> rng = np.random.default_rng(1)
    >>> truth = np.repeat([0, 1], 100)
    >>> scores = np.column_stack([np.zeros(200), truth + rng.normal(size=200) - 3])
    >>> hidden = rng.normal(size=(1, 200, 64))
    >>> hidden[0, :, :4] += 2.5 * truth[:, None]
    >>> bool(np.mean(BatchCalibrator().fit(scores).predict(scores) == truth) < 0.75)
    True
    >>> calibrator = RepresentationCalibrator().fit(scores, representations=hidden)
    >>> bool(np.mean(calibrator.predict(scores, representations=hidden) == truth) > 0.95)
    True
    """

    uses_representations: ClassVar[bool] = True
    fits_prompts_together: ClassVar[bool] = True
    min_labels: ClassVar[int] = 2

    _allowed: ClassVar[dict[str, Allowed]] = {**AnchoredCalibrator._allowed, "n_components": whole_number(1)}

    def __init__(
        self,
        *,
        n_components: int = 32,
        anchor_strength: float = 20.0,
        prior: Any = "uniform",
        max_iter: int = 50,
        tol: float = 1e-4,
    ) -> None:
        super().__init__(anchor_strength=anchor_strength, prior=prior, max_iter=max_iter, tol=tol)
        self.n_components = n_components

    def _fit(self, scores: Array, layers: Array) -> None:  # type: ignore[override]
        self._fit_all([self], [scores], [layers])

    @classmethod
    def fit_prompts(cls, members: Sequence[Self], given: Sequence[Mapping[str, Any]]) -> None:
        """One mixture, which has the views of all prompts."""
        checked = [member._given(one["X"], one["representations"]) for member, one in zip(members, given, strict=True)]
        cls._fit_all(members, *zip(*checked, strict=True))
        for member, (scores, _) in zip(members, checked, strict=True):
            member.n_rows_, member.labels_, member.origin_ = len(scores), None, {}
            member.classes_ = np.arange(scores.shape[1])

    @staticmethod
    def _fit_all(members: Sequence[RepresentationCalibrator], scores: Any, layers: Any) -> None:
        reduced = [member._reduced(one) for member, one in zip(members, layers, strict=True)]
        coefs = _fit_together(members, scores, [[components] for components, _, _ in reduced])
        for member, (coef,), (_, axes, means) in zip(members, coefs, reduced, strict=True):
            parts = zip(axes, np.split(coef, len(axes)), strict=True)
            member.layer_coef_ = np.stack([axis @ part for axis, part in parts])
            member.intercept_ = member.intercept_ - np.einsum("lw,lwk->k", means, member.layer_coef_)

    def _reduced(self, layers: Array) -> tuple[Array, Sequence[Array], Array]:
        """The view of all layers; of each layer its principal axes and its mean."""
        _, n, width = layers.shape
        size = max(1, min(self.n_components, n // 4, width))
        components, axes, means = zip(*(principal_components(unit_scale(layer), size) for layer in layers), strict=True)
        return np.hstack(components), axes, np.stack(means)

    def _calibrate(self, scores: Array, layers: Array) -> Array:  # type: ignore[override]
        if layers.shape[::2] != self.layer_coef_.shape[:2]:
            raise CalibrationError(
                f"The representations have {layers.shape[0]} layers of width {layers.shape[2]}, the fit had "
                f"{self.layer_coef_.shape[0]} of width {self.layer_coef_.shape[1]}; give the same layers of one model."
            )
        views = zip(layers, self.layer_coef_, strict=True)
        return super()._calibrate(scores, sum(unit_scale(layer) @ coef for layer, coef in views))

    def _blank_document(self) -> tuple[Array, ...]:
        n_layers, width, _ = self.layer_coef_.shape
        return (*super()._blank_document(), np.ones((n_layers, 1, width)))


def _fit_together(
    members: Sequence[AnchoredCalibrator], scores: Sequence[Array], further: Sequence[Sequence[Array]]
) -> list[Sequence[Array]]:
    """Everything that the calibrators of one or several prompts learn from the documents that all of them show.

    `further` views of each prompt come with a mean of zero. Gives the coefficients of these, as many for each prompt.
    """
    first, m = members[0], len(members)
    log_prior, shares = first._log_prior(scores[0].shape[1])
    log_probas = [log_softmax(one, axis=1) for one in scores]
    for member, log_proba in zip(members, log_probas, strict=True):
        member.anchor_shift_ = _anchor_shift(log_proba, shares)
    if (n_labels := scores[0].shape[1]) < first.min_labels:
        for member, log_proba in zip(members, log_probas, strict=True):
            member.kept_anchor_ = f"the scores of {n_labels} labels are too few for a mixture"
            member.estimated_accuracy_ = _confidence(log_proba - member.anchor_shift_)
        return [()] * m
    em = _Documents(first, log_probas, further, log_prior, shares)
    found = em.fit(slice(None))
    evidence = em.evidence(found)
    for member, centre, part in zip(members, em.centres, _parts(found, m), strict=True):
        coef, *_ = part.coefs
        member.score_coef_ = helmert(n_labels).T @ coef
        member.intercept_ = sum(part.constants) - centre @ coef
        for name, value in evidence.items():
            setattr(member, name, value)
    return [part.coefs[1:] for part in _parts(found, m)]


def _parts(mixture: Mixture, m: int) -> list[Mixture]:
    """The mixture's part of each of m prompts, whose mean it is."""
    size = len(mixture.coefs) // m
    return [
        mixture._replace(
            coefs=[m * one for one in mixture.coefs[start : start + size]],
            constants=[m * one for one in mixture.constants[start : start + size]],
        )
        for start in range(0, m * size, size)
    ]


class _Documents:
    """What EM sees of the documents under all prompts."""

    def __init__(
        self,
        calibrator: AnchoredCalibrator,
        log_probas: Sequence[Array],
        further: Sequence[Sequence[Array]],
        log_prior: Array | None,
        shares: Array,
    ) -> None:
        self.calibrator, self.log_probas, self.shares = calibrator, log_probas, shares
        ratios = [_log_ratios(one) for one in log_probas]
        self.centres = [one.mean(axis=0) for one in ratios]
        of_prompts = zip(ratios, self.centres, further, strict=True)
        self.views = [view for one, centre, others in of_prompts for view in (one - centre, *others)]
        m, n_labels = len(log_probas), len(shares)
        self.options: dict[str, Any] = {
            "strength": calibrator.anchor_strength,
            "max_iter": calibrator.max_iter,
            "tol": calibrator.tol,
            "log_prior": log_prior,
            "weights": [one / m for one in ([1 - 1 / n_labels, 1.0] if further[0] else [1.0])] * m,
        }

    def anchored(self, rows: Any) -> Array:
        """Logits of batch calibration on some of the documents, of all prompts together."""
        parts = [one[rows] for one in self.log_probas]
        return np.mean([one - _anchor_shift(one, self.shares) for one in parts], axis=0)

    def fit(self, rows: Any) -> Mixture:
        return fit_mixture([x[rows] for x in self.views], softmax(self.anchored(rows), axis=1), **self.options)

    def logits(self, mixture: Mixture) -> Array:
        """Of all documents."""
        return self.calibrator._mixed(self.anchored(slice(None)), mixture.logits(self.views))

    def stability(self) -> float:
        """Share of documents on which two fits agree that were each made on one half of the documents."""
        n = len(self.log_probas[0])
        if n < 4:
            return 1.0
        order = np.random.default_rng(0).permutation(n)  # rows may be sorted or periodic
        one, other = (self.logits(self.fit(half)).argmax(axis=1) for half in np.array_split(order, 2))
        return float((one == other).mean())

    def evidence(self, mixture: Mixture) -> dict[str, Any]:
        """How good the fit is, without labels."""
        anchor, logits = softmax(self.anchored(slice(None)), axis=1), self.logits(mixture)
        admitted = float(anchor.max(axis=1).mean())
        temperature = _temperature(logits, admitted)
        expected, predicted = anchor.mean(axis=0), logits.argmax(axis=1)
        shares = np.bincount(predicted, minlength=len(expected)) / len(predicted)
        smallest = float((shares / np.maximum(expected, 1 / len(predicted))).min())
        stability = self.stability()
        kept = _why_the_anchor(stability, smallest)
        return {
            "temperature_": temperature,
            "estimated_accuracy_": admitted if kept else _confidence(temperature * logits),
            "kept_anchor_": kept,
            "agreement_": float((predicted == anchor.argmax(axis=1)).mean()),
            "raw_agreement_": float((predicted == np.mean(self.log_probas, axis=0).argmax(axis=1)).mean()),
            "skew_": float(np.abs(shares - expected).sum() / 2),
            "smallest_share_": smallest,
            "stability_": stability,
            "separation_": mixture.separation,
            "n_iter_": mixture.n_iter,
            "converged_": mixture.converged,
            "moving_": mixture.moving,
        }


def _why_the_anchor(stability: float, smallest_share: float) -> str:
    if stability < LEAST_STABILITY:
        return f"two fits on half of the documents each agree on only {stability:.0%} of them"
    if smallest_share < LEAST_SHARE:
        return f"a label has only {smallest_share:.0%} of the documents that the anchor gives it"
    return ""


def _log_ratios(log_proba: Array) -> Array:
    """Coordinates of log-probabilities less their mean: helmert's rows are orthonormal and sum to zero."""
    return log_proba @ helmert(log_proba.shape[1]).T


def _anchor_shift(log_proba: Array, shares: Array) -> Array:
    """The shift of batch calibration; for unequal shares, the shift under which mean probabilities are the shares."""
    shift = log_proba.mean(axis=0)
    if np.allclose(shares, 1 / len(shares)):
        return shift
    for _ in range(1000):
        step = np.log(softmax(log_proba - shift, axis=1).mean(axis=0)) - np.log(shares)
        shift = shift + step
        if np.abs(step).max() < 1e-9:
            break
    return shift


def _temperature(logits: Array, admitted: float) -> float:
    """Without labels: mean confidence halfway between what the mixture claims and what the anchor admits."""
    claimed = _confidence(logits)
    wanted = (claimed + admitted) / 2
    return 1.0 if claimed <= wanted else brentq(lambda factor: _confidence(factor * logits) - wanted, 0.0, 1.0)


def _confidence(logits: Array) -> float:
    """Mean probability of the most probable label."""
    return float(softmax(logits, axis=1).max(axis=1).mean())
