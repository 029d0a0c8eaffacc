"""Measure how anisotropic embeddings are, before and after whitening: python examples/embeddings.py [vectors.npy]"""

from __future__ import annotations

import sys

import numpy as np

import anisoscope

if len(sys.argv) > 1:
    rows = np.load(sys.argv[1])
else:
    rows = anisoscope.synthetic.cloud("power law", n=3000, d=48).numpy() + 0.5

names = ["mean_cosine", "spectral_anisotropy", "isoscore"]
whitened = anisoscope.fit_remedy(rows, centre=True, whiten=True).apply(rows)
for title, each in (("before", rows), ("after centring and whitening", whitened)):
    print(title)
    for record in anisoscope.measure_rows(each, names):
        print(f"  {record.metric:20} {record.value:7.3f} ± {record.error:.3f}   null {record.null:.3f}")
