"""What to do about a file of Keras that is refused: the end of an error's message."""

AGAIN = "save the model with Keras again"
CHANGE = "change the layer and save the model again (docs/models.md lists what is served)"
OF_KERAS = "replace it with layers of Keras, and save the model again"
