"""TwoNN and Gride of DADApy.

`python peer_dadapy_scales.py ROWS.npy` prints a JSON object: the dimension by estimator.
"""

import json
import sys

import numpy as np
from dadapy import Data  # type: ignore[import-not-found]

rows = np.load(sys.argv[1])  # (n, d)
data = Data(rows, maxk=64, n_jobs=1)
answers = {"2NN": float(data.compute_id_2NN()[0])}
scales, _, _ = data.return_id_scaling_gride(range_max=32)  # ratios r2/r1, r4/r2, r8/r4, …
answers |= {f"Gride {2**power}": float(value) for power, value in enumerate(scales)}
print(json.dumps(answers))
