"""One sweep over the nine tasks that several analyses take a part of; each names the tasks that it needs."""

from __future__ import annotations

from results.sweeps import SMOLLM2_ARGS, Sweep


def part_of_nine(tasks: str, *, shots: str = "0 4", seeds: str = "0 1 2") -> Sweep:
    """Some of its cells. They have the same folders whatever else a command asks for, so that nothing runs twice."""
    return Sweep(
        f"lm-eval-proca sweep --model_args {SMOLLM2_ARGS} --tasks {tasks} --num_fewshot {shots} --seeds {seeds} "
        "--limit 200 --metadata proca.estimate_size=400 --output_path .results/nine",
        model="SmolLM2-135M",
    )
