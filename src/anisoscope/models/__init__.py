"""Opening models: hub ids, folders, GGUF files, adapters, series of checkpoints."""

from anisoscope.models.checkpoints import Checkpoint, checkpoints
from anisoscope.models.open import Opened, open_model
from anisoscope.models.weight_files import weights_digest

__all__ = ["Checkpoint", "Opened", "checkpoints", "open_model", "weights_digest"]
