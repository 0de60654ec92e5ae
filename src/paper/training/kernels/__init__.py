"""Layers of the networks, one file per hardware path.

`torch_layers` defines what is computed, for any device. `triton_layers` is faster for batched MLPs on any GPU, `hopper`
for five or more MLPs on a Hopper GPU, `convolution` for conv nets on a GPU.
"""
