"""Studies built on the library: the lab, the claims of four papers, a curvature simulation and the demo."""
