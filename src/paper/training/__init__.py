"""The training engine: runs of one architecture train in one batch, on a CPU or a GPU."""
