"""TwoNN of DADApy.

`python peer_dadapy.py ROWS.npy K` prints the dimension, the CPU time and the wall-clock time in seconds.
"""

import sys
import time

import numpy as np
from dadapy import Data  # type: ignore[import-not-found]

rows = np.load(sys.argv[1])  # (n, d)
start = time.process_time(), time.perf_counter()
data = Data(rows, maxk=max(2, int(sys.argv[2])), n_jobs=1)
dimension, _, _ = data.compute_id_2NN()
work, wall = time.process_time() - start[0], time.perf_counter() - start[1]
print(dimension, work, wall)
