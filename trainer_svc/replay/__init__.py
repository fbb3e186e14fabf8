"""Takes recorded steps again. Reads events and blobs of a running stack; writes nothing."""
