"""Hidden states of chosen layers, read by hooks in the very pass that scores, at the places whose logits are wanted.

Layers are counted as `output_hidden_states` of transformers counts them: 0 is the embedding, n (the number of layers)
is what the output layer reads, after the final norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from lm_eval_proca.errors import ModelError
from lm_eval_proca.representations import Layer


def layer_index(layer: Layer, depth: int) -> int:
    """The index of a layer in a model of this depth."""
    index = round(layer * depth) if isinstance(layer, float) else layer if layer >= 0 else depth + 1 + layer
    if not 0 <= index <= depth:
        raise ModelError(
            f"There is no layer {layer} in a model of {depth} layers; give an index from 0 to {depth}, -1 for the "
            f"last, or a fraction of the depth between 0 and 1, in proca.layers."
        )
    return index


def check_layers(layers: Sequence[Layer], depth: int) -> None:
    """No layer is counted twice, from both ends; fractions of a shallow model may be the same layer."""
    found = [layer_index(layer, depth) for layer in layers if isinstance(layer, int)]
    if len(set(found)) < len(found):
        raise ModelError(
            f"proca.layers={'/'.join(map(str, layers))} names a layer of this model of {depth} layers twice "
            f"({'/'.join(map(str, found))}); leave one of them out."
        )


@contextmanager
def hidden_states_at(
    places: torch.Tensor, readers: Sequence[nn.Module], layers: Iterable[Layer]
) -> Iterator[dict[Layer, torch.Tensor]]:
    """A dictionary that a forward pass within the block fills: by layer, the states at `places` of every row, one row
    after the other. `readers` are those of the model."""
    states: dict[Layer, torch.Tensor] = {}

    def keep(layer: Layer, reader: nn.Module, args: Any, kwargs: Any) -> None:
        given = args[0] if args else kwargs["hidden_states"]
        # Models give their output layer the wanted places alone.
        chosen = given if given.shape[1] == len(places) else given[:, places]
        states[layer] = chosen.flatten(0, 1).float()

    with ExitStack() as hooks:
        for layer in layers:
            reader = readers[layer_index(layer, len(readers) - 1)]
            hooks.callback(reader.register_forward_pre_hook(partial(keep, layer), with_kwargs=True).remove)
        yield states


def readers_of(model: Any) -> list[nn.Module]:
    """What reads each hidden state of a causal model of transformers: a block reads the state before it, the output
    layer reads the state after the last block and the final norm."""
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return [*module, model.get_output_embeddings()]
    raise ModelError(
        f"The {depth} layers of {type(model).__name__} cannot be found; run with proca.representation=probes."
    )
