"""The vocabulary: identities, specifications and limits. Pure, and imports nothing of ours but errors."""
