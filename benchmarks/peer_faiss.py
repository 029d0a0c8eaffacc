"""TwoNN on faiss's exact flat index.

`python peer_faiss.py ROWS.npy K` prints the dimension, the CPU time and the wall-clock time in seconds.
"""

import sys
import time

import faiss  # type: ignore[import-not-found]
import numpy as np

rows = np.ascontiguousarray(np.load(sys.argv[1]), dtype=np.float32)  # (n, d); faiss has no float64
k = int(sys.argv[2])
start = time.process_time(), time.perf_counter()
index = faiss.IndexFlatL2(rows.shape[1])
index.add(rows)
squares, _ = index.search(rows, k + 1)  # (n, k + 1): each row finds itself first
r1, r2 = np.sqrt(np.maximum(squares[:, 1:3].T, 0))  # rounding of the expanded square can fall below zero
with np.errstate(divide="ignore", invalid="ignore"):
    log_mu = np.sort(np.log(r2 / r1))
keep = int(0.9 * len(rows))
heights = -np.log1p(-np.arange(1, keep + 1) / len(rows))
dimension = float(log_mu[:keep] @ heights / (log_mu[:keep] @ log_mu[:keep]))
work, wall = time.process_time() - start[0], time.perf_counter() - start[1]
print(dimension, work, wall)
