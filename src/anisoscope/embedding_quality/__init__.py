"""What practitioners ask of embeddings: duplicates, hubs, the cone, retrieval and labels, before and after remedies."""
