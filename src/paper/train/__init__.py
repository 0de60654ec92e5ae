"""The training engine: runs that share an architecture train together, on a CPU or a GPU."""
