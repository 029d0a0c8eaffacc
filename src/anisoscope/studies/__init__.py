"""Built on the library and never imported by it: small transformers to train, claims of four papers, the demo."""
