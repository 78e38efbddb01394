"""Activities of graphs: steps, batches, and questions about what a graph waits for."""
