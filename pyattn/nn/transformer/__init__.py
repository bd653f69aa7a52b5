"""The Transformer: layers, stacks, encoder and decoder, and language models."""
