"""anisoscope: the shape of a transformer's representations, layer by layer, while it trains and after."""

__version__ = "0.1.0"
