"""Opening models and making batches for them."""

from anisoscope.models.audio import audio_batches
from anisoscope.models.batches import model_batches
from anisoscope.models.checkpoints import Checkpoint, checkpoints
from anisoscope.models.images import image_batches
from anisoscope.models.opening import Opened, open_model
from anisoscope.models.tables import Batch, Table, table_at
from anisoscope.models.text import Documents, text_batches, text_documents
from anisoscope.models.weights import weights_digest

__all__ = [
    "Batch",
    "Checkpoint",
    "Documents",
    "Opened",
    "Table",
    "audio_batches",
    "checkpoints",
    "image_batches",
    "model_batches",
    "open_model",
    "table_at",
    "text_batches",
    "text_documents",
    "weights_digest",
]
