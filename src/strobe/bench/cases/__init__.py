"""What can be compared: each case turns something of the video tower into variants that the runner can measure."""
