"""Statistics: values that are made from rows and that add, `of(a) + of(b) == of(a followed by b)`.

Rows and collecting
    `rows` (`Rows`, `Tokens`), `collector` and `collect` (batches -> statistics by block of documents), `cloud`
    (`Cloud`: the collected statistics of one site), `registry` (the kinds of statistics), `packing` (statistics as
    named arrays).
Collected statistics
    `moments`, `directions`, `row_norms`, `entries`, `documents`, `token_steps` and `sequence_spectra` (sequences),
    `partition`, `sample` (kept rows), `head_scores`, `head_sums` and `head_norms` (attention), `writes` (branches),
    `router_sums` (mixtures of experts).
Derived statistics, made from collected ones
    `derived`, `neighbours`, `words`, `pairs` (two clouds of the same tokens).
Algorithms
    `inference` (jackknife, quantiles, rank correlation), `kmeans`, `knn` with `knn_space`, `knn_blocks` and `knn_exact`
    (exact nearest neighbours), `tridiagonal` (eigenvalues), `arithmetic`, `threads`.

The package itself imports nothing, so that `stats.inference` can be used without torch.
"""
