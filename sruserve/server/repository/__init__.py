"""The models that are served: found, loaded, replaced and unloaded."""
