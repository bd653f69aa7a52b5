"""The Transformer: a layer, a stack of layers, encoder and decoder, and language models made of them."""
