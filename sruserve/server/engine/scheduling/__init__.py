"""Choose the work of the next step: admission, fair shares and decode turns."""
