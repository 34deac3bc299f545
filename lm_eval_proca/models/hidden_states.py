"""Hidden states of chosen layers, read by hooks in the very pass that scores, at the places whose logits are wanted.

Layers are counted as `output_hidden_states` of transformers counts them: 0 is the embedding, n (the number of layers)
is what the output layer reads, after the final norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from lm_eval_proca.errors import ModelError

Layer = int | float
"""An index, or a fraction of the depth: 1.0 is the last layer, 1 the first."""


def layer_index(layer: Layer, depth: int) -> int:
    """The index of a layer in a model of this depth."""
    index = round(layer * depth) if isinstance(layer, float) else layer
    if not 0 <= index <= depth:
        raise ModelError(
            f"There is no layer {layer} in a model of {depth} layers; give an index from 0 to {depth}, or a fraction "
            f"of the depth from 0.0 to 1.0, in proca.layers."
        )
    return index


class HiddenStates:
    """Reads hidden states of a causal model of transformers."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @cached_property
    def _readers(self) -> list[nn.Module]:
        """A block reads the state before it; the output layer reads the state after the last block and final norm."""
        return [*_decoder_blocks(self._model), self._model.get_output_embeddings()]

    @contextmanager
    def read(self, layers: Iterable[Layer], places: torch.Tensor) -> Iterator[dict[Layer, torch.Tensor]]:
        """A dictionary that a forward pass within the block fills: by layer, the states at `places` of every row, one
        row after the other."""
        states: dict[Layer, torch.Tensor] = {}

        def keep(layer: Layer, reader: nn.Module, args: Any, kwargs: Any) -> None:
            given = args[0] if args else kwargs["hidden_states"]
            # Models give their output layer the wanted places alone.
            chosen = given if given.shape[1] == len(places) else given[:, places]
            states[layer] = chosen.flatten(0, 1).float()

        with ExitStack() as hooks:
            for layer in layers:
                reader = self._readers[layer_index(layer, len(self._readers) - 1)]
                handle = reader.register_forward_pre_hook(partial(keep, layer), with_kwargs=True)
                hooks.callback(handle.remove)
            yield states


def _decoder_blocks(model: Any) -> nn.ModuleList:
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise ModelError(f"The {depth} layers of {type(model).__name__} cannot be found; run with proca.layers=none.")
