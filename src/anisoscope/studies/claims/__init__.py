"""Four papers that disagree: each claim as a test that runs here, and the rule that judges it."""
