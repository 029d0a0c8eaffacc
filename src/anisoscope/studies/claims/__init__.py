"""The claims of four papers on anisotropy: evidence, rules and verdicts."""
