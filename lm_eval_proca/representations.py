"""What a model hands over of a document beside its label scores, in one form from the backend to the calibrator.

lm-eval asks for the log-likelihood of a pair (context, continuation), and gets a pair (log-likelihood, is greedy).
:class:`Asked` and :class:`Answered` are these pairs, with what is wanted and what was found. lm-eval passes them on
unread: between processes, into the file of `--use_cache` and back to the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self

Layer = int | float
"""An index, from the end where it is negative (-1 is the last layer), or a fraction of the depth."""


@dataclass(frozen=True)
class Representation:
    """Which numbers stand beside the scores: hidden states of layers, or log-probabilities of probe tokens."""

    layers: tuple[str, ...] = ()
    """As `proca.layers` names them."""
    probes: tuple[int, ...] = ()
    """Token ids."""

    @property
    def views(self) -> tuple[str, ...]:
        """A name for each vector of a document."""
        return self.layers or (("probes",) if self.probes else ())

    def as_json(self) -> dict[str, Any]:
        return {key: list(value) for key, value in asdict(self).items() if value}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{key: tuple(one) for key, one in value.items()})

    def __str__(self) -> str:
        if self.layers:
            return f"hidden states of the layers {', '.join(self.layers)}"
        return f"log-probabilities of {len(self.probes)} probe tokens" if self.probes else "nothing"


@dataclass(frozen=True)
class Wanted:
    """What a task wants to know of a document. A model gives hidden states if it can, else probes if these will do."""

    layers: tuple[Layer, ...] = ()
    probes: bool = False
    labels: tuple[str, ...] = ()
    """The continuations of the document; no probe is the beginning of one."""

    @property
    def states(self) -> Representation:
        return Representation(layers=tuple(map(str, self.layers)))


class Asked(tuple[str, str]):
    """Context and continuation of a request, and what is wanted beside the score."""

    wanted: Wanted

    @classmethod
    def of(cls, pair: tuple[str, str], wanted: Wanted) -> Self:
        asked = cls(pair)
        asked.wanted = wanted
        return asked


class Answered(tuple[float, bool]):
    """Log-likelihood and whether the continuation is the greedy one, and what else the model can tell."""

    truncated: bool | None = None
    """Whether the model saw the prompt without its beginning; None where it does not tell."""
    representation: Representation = Representation()
    values: np.ndarray | None = None
    """Of shape (views, width); see :func:`scaled`."""
    missing: str = ""
    """Why there is no representation, where one was wanted."""

    @classmethod
    def of(cls, pair: tuple[float, bool], **known: Any) -> Self:
        answered = cls(pair)
        for name, value in known.items():
            setattr(answered, name, value)
        return answered


def scaled(values: np.ndarray, representation: Representation) -> np.ndarray:
    """Vectors of unit root mean square, which half precision can hold whatever the model.

    Log-probabilities are logits less the logarithm of a sum over the vocabulary. Less their mean, they are a linear
    function of the last hidden state.
    """
    centred = values - values.mean(axis=-1, keepdims=True) if representation.probes else values
    return unit_scale(centred).astype(np.float16)


def unit_scale(layer: np.ndarray) -> np.ndarray:
    """Vectors with a root mean square of one each, as a norm before the next layer would scale them."""
    x = np.asarray(layer, dtype=np.float32)
    return x / np.maximum(np.sqrt(np.square(x).mean(axis=-1, keepdims=True)), np.finfo(np.float32).tiny)
