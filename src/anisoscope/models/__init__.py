"""Open models: hub ids, folders, GGUF files, adapters and series of checkpoints.

These are the public names. Inside the library, import them from their modules. Other packages can register a function
that opens their own folders with the entry point group `anisoscope.models`, see CONTRIBUTING.md.
"""

from anisoscope.models.checkpoints import Checkpoint, checkpoints
from anisoscope.models.open import Opened, Opener, open_model
from anisoscope.models.weight_files import weights_digest

__all__ = ["Checkpoint", "Opened", "Opener", "checkpoints", "open_model", "weights_digest"]
