"""Layers of the networks: `torch_layers` for any device, `convolution` for conv nets on a GPU."""
