"""The lab: small transformers that grow up in front of the instrument."""
