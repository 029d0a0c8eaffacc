"""The atlas: every trained model that installs by package name, measured with one instrument on one page."""
