"""What goes out: groups to open, and batches to train."""
