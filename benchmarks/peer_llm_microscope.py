"""TwoNN of llm-microscope.

`python peer_llm_microscope.py ROWS.npy K` prints the dimension, the CPU time and the wall-clock time in seconds.

The published package cannot be imported (it imports its own file `logit_lens` as a top-level module), so only the file
with the estimator is loaded.
"""

import sys
import time
from importlib.metadata import files
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import torch

path = next(file for file in files("llm-microscope") or () if file.name == "functions.py").locate()
spec = spec_from_file_location("functions", str(path))
assert spec is not None
assert spec.loader is not None
functions = module_from_spec(spec)
spec.loader.exec_module(functions)

rows = torch.from_numpy(np.load(sys.argv[1]))  # (n, d)
start = time.process_time(), time.perf_counter()
dimension = functions.intrinsic_dimension(rows, "cpu")
work, wall = time.process_time() - start[0], time.perf_counter() - start[1]
print(dimension, work, wall)
