"""Read text, images, sound and vectors as batches with a table of their tokens.

These are the public names. Inside the library, import them from their modules.
"""

from anisoscope.data.audio import audio_batches
from anisoscope.data.batches import model_batches
from anisoscope.data.images import image_batches
from anisoscope.data.text import text_batches
from anisoscope.data.text_sources import TextDocuments, text_documents
from anisoscope.data.token_table import Batch, TokenTable
from anisoscope.data.vectors import Vectors, open_vectors, write_npy

__all__ = [
    "Batch",
    "TextDocuments",
    "TokenTable",
    "Vectors",
    "audio_batches",
    "image_batches",
    "model_batches",
    "open_vectors",
    "text_batches",
    "text_documents",
    "write_npy",
]
