"""The stages around the fine stage of video-sparse attention: reordering into tiles, selection of tiles, and back."""
