"""Networks that Keras saved: `.keras` archives and HDF5 files."""
