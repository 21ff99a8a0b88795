"""What surrounds the fine stage of video-sparse attention: into tiles, which tiles to see, and back."""
