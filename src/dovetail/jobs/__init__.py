"""One function a command: shelf to verb to record to shelf.  Every door calls these."""
