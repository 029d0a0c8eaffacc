"""What both drivers share: a pass over a model, evaluated site by site, and the run it is written to."""

from anisoscope.survey.evaluated import Evaluated
from anisoscope.survey.survey import Survey

__all__ = ["Evaluated", "Survey"]
