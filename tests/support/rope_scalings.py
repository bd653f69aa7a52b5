"""Published ways to stretch rotary frequencies, as a config.json has them."""

from __future__ import annotations

import numpy as np

PAIRS = 32
rng = np.random.default_rng(0)
FACTORS = {name: np.round(rng.uniform(1, most, PAIRS), 3).tolist() for name, most in (("short", 1.5), ("long", 60))}
LONGROPE = {"rope_type": "longrope", "short_factor": FACTORS["short"], "long_factor": FACTORS["long"]}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
