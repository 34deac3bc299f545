"""Representations as features: a few dimensions for every view."""

from __future__ import annotations

import numpy as np

from lm_eval_proca.calibration.base import Array


def principal_components(x: Array, size: int) -> tuple[Array, Array, Array]:
    """The components of every row, scaled to a total variance of one; the scaled axes (width, size), and the mean."""
    from sklearn.decomposition import PCA  # half a second to import, which commands without representations save

    pca = PCA(size, random_state=0).fit(x)
    components = pca.transform(x).astype(np.float64)
    scale = max(float(np.sqrt(components.var(axis=0).sum())), np.finfo(np.float32).tiny)
    return components / scale, pca.components_.T.astype(np.float64) / scale, pca.mean_.astype(np.float64)
