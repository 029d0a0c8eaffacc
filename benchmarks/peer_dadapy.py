"""TwoNN of DADApy: python peer_dadapy.py ROWS.npy K prints the dimension, then the seconds."""

import sys
import time

import numpy as np
from dadapy import Data  # type: ignore[import-not-found]

rows = np.load(sys.argv[1])  # (n, d)
start = time.perf_counter()
data = Data(rows, maxk=max(2, int(sys.argv[2])), n_jobs=1)
dimension, _, _ = data.compute_id_2NN()
seconds = time.perf_counter() - start
print(dimension)
print(seconds)
