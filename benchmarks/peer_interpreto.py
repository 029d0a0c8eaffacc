"""Semi-NMF as Interpreto ships it.

`python peer_interpreto.py ROWS.npy K` prints ‖X − ZD‖/‖X‖, the CPU time and the wall-clock time in seconds. It loads
only the matrix code, because the package around it has many more dependencies.
"""

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

package = find_spec("interpreto")
assert package is not None
assert package.origin is not None
sys.path.insert(0, str(Path(package.origin).parent / "_vendor"))
from overcomplete.optimization import SemiNMF  # type: ignore[import-not-found]  # noqa: E402

rows = torch.from_numpy(np.load(sys.argv[1]))  # (n, d)
torch.manual_seed(0)
start = time.process_time(), time.perf_counter()
loadings, concepts = SemiNMF(int(sys.argv[2])).fit(rows)
work, wall = time.process_time() - start[0], time.perf_counter() - start[1]
print(float((rows - loadings @ concepts).norm() / rows.norm()), work, wall)
