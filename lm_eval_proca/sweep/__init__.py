"""Many lm-eval runs: cells, the runner that never loses one, sweeps over grids of them."""
