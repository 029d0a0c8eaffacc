"""Reading data: text, images, audio and vectors become batches with a table of their tokens."""
