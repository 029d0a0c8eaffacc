"""What both drivers share: a pass over a model, evaluated site by site, and the run it is written to."""

from anisoscope.survey.survey import Evaluated, Survey

__all__ = ["Evaluated", "Survey"]
