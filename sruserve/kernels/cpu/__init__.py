"""The compiled CPU kernel, and the functions that call it through ctypes."""
