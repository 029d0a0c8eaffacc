"""The lab: small transformers, trained while being measured, that differ in one switch at a time."""
