"""What a gateway reads for its callers: blobs part by part (downloads), and samples as messages (samples)."""
