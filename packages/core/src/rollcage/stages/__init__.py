"""The features that the four words need, one file each; a session has those that it asks for."""
